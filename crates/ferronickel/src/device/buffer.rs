//! A typed range of a device's memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use super::{Device, Memory, Use};
use crate::error::{Error, ErrorKind, Result};
use crate::types::Element;

/// Elements in a device's memory, or a range of them: clones and [slices](Self::slice) share the memory.
///
/// Reading and writing by the caller waits for the calls that use the memory, on whatever stream they are.
pub struct DeviceBuffer<T> {
    memory: Memory,
    offset: usize,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> DeviceBuffer<T> {
    pub(super) fn new(device: &Device, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize).ok_or_else(|| {
            let seen = format!("{len} elements of {} are more than an address can reach", T::DATA_TYPE);
            Error::new(ErrorKind::InvalidArgument, seen).in_call("alloc")
        })?;
        let memory = Memory::new(device, bytes).map_err(|error| error.in_call("alloc"))?;
        Ok(DeviceBuffer { memory, offset: 0, len, element: PhantomData })
    }

    /// The elements in `range`, in the same memory.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when the range does not lie in the buffer.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > self.len {
            let seen = format!("elements {}..{} are not in a buffer of {}", range.start, range.end, self.len);
            return Err(Error::new(ErrorKind::InvalidArgument, seen).in_call("slice"));
        }
        Ok(DeviceBuffer { offset: self.offset + range.start, len: range.end - range.start, ..self.clone() })
    }

    /// Writes all elements.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when `from` has not as many elements as the buffer;
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) in a process forked from the one that had the communicator;
    /// [`Remote`](ErrorKind::Remote) when a rank of another process fell silent that may still write here.
    pub fn copy_from_host(&self, from: &[T]) -> Result<()> {
        self.same_length("copy_from_host", from.len())?;
        let _use = Use::by_host(&self.memory, true).map_err(|error| error.in_call("copy_from_host"))?;
        // SAFETY: the range is in the allocation, no call uses it, and a slice of the caller's is not part of it
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.as_mut_ptr(), self.len) };
        Ok(())
    }

    /// Reads all elements.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when `to` has not as many elements as the buffer;
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) in a process forked from the one that had the communicator;
    /// [`Remote`](ErrorKind::Remote) when a rank of another process fell silent that may still write here.
    pub fn copy_to_host(&self, to: &mut [T]) -> Result<()> {
        self.same_length("copy_to_host", to.len())?;
        let _use = Use::by_host(&self.memory, false).map_err(|error| error.in_call("copy_to_host"))?;
        // SAFETY: as in copy_from_host
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), to.as_mut_ptr(), self.len) };
        Ok(())
    }

    /// All elements.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) in a process forked from the one that had the communicator;
    /// [`Remote`](ErrorKind::Remote) when a rank of another process fell silent that may still write here.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let _use = Use::by_host(&self.memory, false).map_err(|error| error.in_call("to_vec"))?;
        // SAFETY: the range is in the allocation and initialised (memory starts zeroed, every pattern is valid); no
        // call writes it while `_use` lives
        Ok(unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }.to_vec())
    }

    fn same_length(&self, call: &str, len: usize) -> Result<()> {
        if len == self.len {
            return Ok(());
        }
        let seen = format!("the buffer has {} elements, the slice {len}", self.len);
        Err(Error::new(ErrorKind::InvalidArgument, seen).in_call(call))
    }

    fn as_mut_ptr(&self) -> *mut T {
        // SAFETY: offset and length were checked against the allocation
        unsafe { self.memory.base().cast::<T>().add(self.offset) }
    }

    /// Where the elements are.
    pub fn as_ptr(&self) -> *const T {
        self.as_mut_ptr()
    }
}

impl<T> DeviceBuffer<T> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device whose memory it is.
    pub fn device(&self) -> &Device {
        self.memory.device()
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl<T> Clone for DeviceBuffer<T> {
    fn clone(&self) -> Self {
        DeviceBuffer { memory: self.memory.clone(), offset: self.offset, len: self.len, element: PhantomData }
    }
}

impl<T: Element> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} of {}, {})", self.len, T::DATA_TYPE, self.device())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_shares_the_memory() {
        let whole = Device::host(0).alloc::<u32>(8).unwrap();
        whole.slice(2..5).unwrap().copy_from_host(&[1, 2, 3]).unwrap();
        assert_eq!(whole.to_vec().unwrap(), [0, 0, 1, 2, 3, 0, 0, 0]);
        let mut inner = [0; 2];
        whole.slice(2..5).unwrap().slice(1..3).unwrap().copy_to_host(&mut inner).unwrap();
        assert_eq!(inner, [2, 3]);
    }

    #[test]
    fn wrong_ranges_and_lengths_are_named() {
        let buffer = Device::host(0).alloc::<f64>(4).unwrap();
        let error = buffer.slice(2..9).unwrap_err().to_string();
        assert_eq!(error, "slice: invalid argument: elements 2..9 are not in a buffer of 4");
        #[allow(clippy::reversed_empty_ranges, reason = "it is what the test is about")]
        let backwards = buffer.slice(3..2);
        assert!(backwards.is_err());
        assert!(buffer.copy_from_host(&[1.0]).unwrap_err().to_string().contains("has 4 elements, the slice 1"));
        assert!(Device::host(0).alloc::<f64>(usize::MAX).is_err());
        assert_eq!(Device::host(0).alloc::<f64>(0).unwrap().to_vec().unwrap(), []);
    }
}
