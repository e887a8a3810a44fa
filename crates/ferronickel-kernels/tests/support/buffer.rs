//! Real memory with guards on both sides.

use ferronickel_kernels::element::Element;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

/// Bytes before and after, and the alignment of the first byte between them.
const GUARD: usize = 128;
const PATTERN: u8 = 0xa5;

/// A range of bytes that several threads reach through raw pointers.
pub struct Buffer {
    memory: *mut u8,
    layout: Layout,
    shift: usize,
    bytes: usize,
}

// SAFETY: the memory belongs to the buffer; whoever uses its pointers sees to the order of accesses
unsafe impl Send for Buffer {}
// SAFETY: as above
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `bytes` zeros, `shift` bytes off alignment.
    pub fn new(bytes: usize, shift: usize) -> Self {
        let layout = Layout::from_size_align(GUARD + shift + bytes + GUARD, GUARD).unwrap();
        // SAFETY: the size is not zero
        let memory = unsafe { alloc(layout) };
        if memory.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: all of it was just allocated
        unsafe {
            memory.write_bytes(PATTERN, layout.size());
            memory.add(GUARD + shift).write_bytes(0, bytes);
        }
        Buffer { memory, layout, shift, bytes }
    }

    /// The first byte.
    pub fn start(&self) -> *mut u8 {
        self.memory.wrapping_add(GUARD + self.shift)
    }

    /// How many bytes there are.
    #[allow(dead_code)] // not every test asks
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Element `i`; nobody writes meanwhile.
    pub fn get<E: Element>(&self, i: usize) -> E {
        assert!((i + 1) * size_of::<E>() <= self.bytes);
        // SAFETY: within the buffer
        unsafe { self.start().cast::<E>().add(i).read() }
    }

    /// Replaces element `i`; nobody accesses it meanwhile.
    pub fn set<E: Element>(&self, i: usize, element: E) {
        assert!((i + 1) * size_of::<E>() <= self.bytes);
        // SAFETY: within the buffer
        unsafe { self.start().cast::<E>().add(i).write(element) }
    }

    /// Whether nothing was written before or after.
    pub fn is_intact(&self) -> bool {
        let inside = GUARD + self.shift..GUARD + self.shift + self.bytes;
        (0..self.layout.size()).filter(|at| !inside.contains(at)).all(|at| {
            // SAFETY: within the allocation
            unsafe { self.memory.add(at).read() == PATTERN }
        })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout
        unsafe { dealloc(self.memory, self.layout) };
    }
}
