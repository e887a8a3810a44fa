//! Host devices: streams that are queues, blocks that are threads.

pub(crate) mod block;
pub(crate) mod dispatcher;
pub(crate) mod doze;
pub(crate) mod kernels;
pub(crate) mod lock;
mod numbers;
pub(crate) mod operation;
pub(crate) mod queue;
pub(crate) mod stream;
pub(crate) mod sync;
pub(crate) mod threads;
pub(crate) mod vector;
pub(crate) mod wait;
mod worker;
