//! Elements, operations, and the description of a call: the vocabulary every layer shares.

use std::fmt;

use ferronickel_kernels as kernels;
pub use ferronickel_kernels::element::{F8E4m3, F8E5m2};

mod description;

pub(crate) use description::{CallDescription, Collective, ReductionKind};

/// The type of an element, with NCCL's number for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum DataType {
    /// Signed, 8 bits.
    Int8 = 0,
    /// Unsigned, 8 bits.
    Uint8 = 1,
    /// Signed, 32 bits.
    Int32 = 2,
    /// Unsigned, 32 bits.
    Uint32 = 3,
    /// Signed, 64 bits.
    Int64 = 4,
    /// Unsigned, 64 bits.
    Uint64 = 5,
    /// IEEE half precision.
    Float16 = 6,
    /// IEEE single precision.
    Float32 = 7,
    /// IEEE double precision.
    Float64 = 8,
    /// The upper half of a single.
    Bfloat16 = 9,
    /// Eight bits, 4 of exponent: [`F8E4m3`].
    Float8e4m3 = 10,
    /// Eight bits, 5 of exponent: [`F8E5m2`].
    Float8e5m2 = 11,
}

impl DataType {
    /// Every type, in the order of NCCL's numbers.
    pub const ALL: [DataType; 12] = [
        DataType::Int8,
        DataType::Uint8,
        DataType::Int32,
        DataType::Uint32,
        DataType::Int64,
        DataType::Uint64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Bfloat16,
        DataType::Float8e4m3,
        DataType::Float8e5m2,
    ];

    /// Bytes of one element.
    pub const fn size_of(self) -> usize {
        match self {
            DataType::Int8 | DataType::Uint8 | DataType::Float8e4m3 | DataType::Float8e5m2 => 1,
            DataType::Float16 | DataType::Bfloat16 => 2,
            DataType::Int32 | DataType::Uint32 | DataType::Float32 => 4,
            DataType::Int64 | DataType::Uint64 | DataType::Float64 => 8,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DataType::Int8 => "int8",
            DataType::Uint8 => "uint8",
            DataType::Int32 => "int32",
            DataType::Uint32 => "uint32",
            DataType::Int64 => "int64",
            DataType::Uint64 => "uint64",
            DataType::Float16 => "float16",
            DataType::Float32 => "float32",
            DataType::Float64 => "float64",
            DataType::Bfloat16 => "bfloat16",
            DataType::Float8e4m3 => "f8e4m3",
            DataType::Float8e5m2 => "f8e5m2",
        })
    }
}

/// A reduction operation, with NCCL's number for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum RedOp {
    /// The sum; integers wrap.
    Sum = 0,
    /// The product; integers wrap.
    Prod = 1,
    /// The largest; a NaN gives way to a number.
    Max = 2,
    /// The smallest; a NaN gives way to a number.
    Min = 3,
    /// The mean: floats are scaled by 1/ranks, then added; integers are added, then divided, truncating.
    Avg = 4,
}

impl RedOp {
    /// Every operation, in the order of NCCL's numbers.
    pub const ALL: [RedOp; 5] = [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min, RedOp::Avg];
}

impl fmt::Display for RedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RedOp::Sum => "sum",
            RedOp::Prod => "prod",
            RedOp::Max => "max",
            RedOp::Min => "min",
            RedOp::Avg => "avg",
        })
    }
}

/// A Rust type that collectives move and reduce.
///
/// # Safety
/// The type is plain bytes of [`DATA_TYPE`](Self::DATA_TYPE)'s size and meaning, every pattern of them valid.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// What the library calls the type.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($t:ty: $data_type:ident;)*) => {$(
        // SAFETY: a number whose every pattern is valid
        unsafe impl Element for $t {
            const DATA_TYPE: DataType = DataType::$data_type;
        }
    )*};
}

elements! {
    i8: Int8;
    u8: Uint8;
    i32: Int32;
    u32: Uint32;
    i64: Int64;
    u64: Uint64;
    half::f16: Float16;
    f32: Float32;
    f64: Float64;
    half::bf16: Bfloat16;
    F8E4m3: Float8e4m3;
    F8E5m2: Float8e5m2;
}

/// Calls `$body` with `$E` as the kernels' element for `$data_type`.
macro_rules! with_element {
    ($data_type:expr, $E:ident => $body:expr) => {{
        use $crate::types::DataType::*;
        match $data_type {
            Int8 => {
                type $E = i8;
                $body
            }
            Uint8 => {
                type $E = u8;
                $body
            }
            Int32 => {
                type $E = i32;
                $body
            }
            Uint32 => {
                type $E = u32;
                $body
            }
            Int64 => {
                type $E = i64;
                $body
            }
            Uint64 => {
                type $E = u64;
                $body
            }
            Float16 => {
                type $E = ferronickel_kernels::element::F16;
                $body
            }
            Float32 => {
                type $E = f32;
                $body
            }
            Float64 => {
                type $E = f64;
                $body
            }
            Bfloat16 => {
                type $E = ferronickel_kernels::element::Bf16;
                $body
            }
            Float8e4m3 => {
                type $E = ferronickel_kernels::element::F8E4m3;
                $body
            }
            Float8e5m2 => {
                type $E = ferronickel_kernels::element::F8E5m2;
                $body
            }
        }
    }};
}
pub(crate) use with_element;

/// Calls `$body` with `$op` as the kernels' reduction for `$red_op`.
macro_rules! with_reduction {
    ($red_op:expr, $ranks:expr, $op:ident => $body:expr) => {{
        use ferronickel_kernels::reduce;
        use $crate::types::RedOp;
        match $red_op {
            RedOp::Sum => {
                let $op = reduce::Sum;
                $body
            }
            RedOp::Prod => {
                let $op = reduce::Prod;
                $body
            }
            RedOp::Max => {
                let $op = reduce::Max;
                $body
            }
            RedOp::Min => {
                let $op = reduce::Min;
                $body
            }
            RedOp::Avg => {
                let $op = reduce::Avg { ranks: $ranks };
                $body
            }
        }
    }};
}
pub(crate) use with_reduction;

const _: () = assert!(size_of::<half::f16>() == size_of::<kernels::element::F16>());
const _: () = assert!(size_of::<half::bf16>() == size_of::<kernels::element::Bf16>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_nccls() {
        for (number, data_type) in DataType::ALL.iter().enumerate() {
            assert_eq!(*data_type as usize, number);
        }
        for (number, op) in RedOp::ALL.iter().enumerate() {
            assert_eq!(*op as usize, number);
        }
    }
}
