//! LL, low latency: every line carries its own flag, so that data and notice arrive together.
//!
//! A *message* is a sequence of eight-byte words cut into lines. Its first word describes the call; the others are
//! the elements. The receiver checks the first word, so that a call which differs is noticed with the first line.

use super::{CallContext, Link, SLOTS, Wire};
use crate::block::{Block, Payload, Stop};
use crate::element::Element;
use crate::reduce::{Reduce, map_word, zip_words};

/// Lines of a message with `bytes` of elements, on blocks of kind `B`.
#[inline(always)]
pub const fn lines<B: Block>(bytes: usize) -> usize {
    (bytes.div_ceil(8) + 1).div_ceil(words::<B>())
}

/// Bytes of elements that fit a message of `lines` lines.
#[inline(always)]
pub const fn capacity<B: Block>(lines: usize) -> usize {
    8 * (lines * words::<B>()).saturating_sub(1)
}

#[inline(always)]
const fn words<B: Block>() -> usize {
    <B::Line as Payload>::WORDS
}

/// A rank's own elements, as the words of a message: `word` counts from the first element.
///
/// # Safety
/// `from` covers `count` elements.
#[inline(always)]
unsafe fn gather<B: Block, E: Element>(block: B, from: *const E, count: usize, word: usize) -> u64 {
    let per_word = 8 / size_of::<E>();
    let at = word * per_word;
    let from = from.wrapping_add(at);
    if at + per_word <= count && from as usize & 7 == 0 {
        // SAFETY: eight aligned bytes within the range
        return unsafe { block.load(from.cast::<u64>()) };
    }
    // A short or misaligned word is put together by shifts, never through memory.
    let mut bits = 0;
    let mut i = 0;
    while i < per_word && at + i < count {
        // SAFETY: `at + i < count`
        bits |= unsafe { block.load(from.add(i)) }.to_bits() << (8 * i * size_of::<E>());
        i += 1;
    }
    bits
}

/// The reverse of [`gather`].
///
/// # Safety
/// `to` covers `count` elements.
#[inline(always)]
unsafe fn scatter<B: Block, E: Element>(block: B, to: *mut E, count: usize, word: usize, bits: u64) {
    let per_word = 8 / size_of::<E>();
    let at = word * per_word;
    let to = to.wrapping_add(at);
    if at + per_word <= count && to as usize & 7 == 0 {
        // SAFETY: eight aligned bytes within the range
        return unsafe { block.store(to.cast::<u64>(), bits) };
    }
    let mut i = 0;
    while i < per_word && at + i < count {
        // SAFETY: `at + i < count`
        unsafe { block.store(to.add(i), E::from_bits(bits >> (8 * i * size_of::<E>()))) };
        i += 1;
    }
}

/// Line `line` of the message that `count` elements at `from` make, prepared for the operation.
///
/// # Safety
/// `from` covers `count` elements.
#[inline(always)]
pub unsafe fn compose<B: Block, E: Element, R: Reduce<E>>(
    block: B,
    op: R,
    call: u64,
    from: *const E,
    count: usize,
    line: usize,
) -> B::Line {
    let mut payload = B::Line::zeroed();
    let mut k = 0;
    while k < words::<B>() {
        let word = line * words::<B>() + k;
        if word == 0 {
            payload.set(k, call);
        } else if (word - 1) * 8 < count * size_of::<E>() {
            // SAFETY: the caller's promise
            let own = unsafe { gather(block, from, count, word - 1) };
            let prepared = if op.prepares() { map_word(own, |e: E| op.prepare(e)) } else { own };
            payload.set(k, prepared);
        }
        k += 1;
    }
    payload
}

/// Writes the elements in line `line` of a message to `to`.
///
/// # Safety
/// `to` covers `count` elements.
#[inline(always)]
pub unsafe fn decompose<B: Block, E: Element>(block: B, payload: B::Line, to: *mut E, count: usize, line: usize) {
    let mut k = 0;
    while k < words::<B>() {
        let word = line * words::<B>() + k;
        if word > 0 && (word - 1) * 8 < count * size_of::<E>() {
            // SAFETY: the caller's promise
            unsafe { scatter(block, to, count, word - 1, payload.get(k)) };
        }
        k += 1;
    }
}

/// Combines the elements in line `line` of two messages of `count` elements; the word that describes the call passes
/// unchanged.
#[inline(always)]
pub fn combine<B: Block, E: Element, R: Reduce<E>>(a: B::Line, b: B::Line, count: usize, line: usize) -> B::Line {
    each_word::<B, E>(a, count, line, |k, word| zip_words(word, b.get(k), R::combine))
}

/// Finishes the elements in line `line` of a message of `count` elements.
#[inline(always)]
pub fn finish<B: Block, E: Element, R: Reduce<E>>(op: R, payload: B::Line, count: usize, line: usize) -> B::Line {
    if !op.finishes() {
        return payload;
    }
    each_word::<B, E>(payload, count, line, |_, word| map_word(word, |e: E| op.finish(e)))
}

/// Changes the words of a line that hold elements, and only those: a small message fills a small part of a line.
#[inline(always)]
fn each_word<B: Block, E: Element>(
    mut payload: B::Line,
    count: usize,
    line: usize,
    f: impl Fn(usize, u64) -> u64,
) -> B::Line {
    let message = 1 + (count * size_of::<E>()).div_ceil(8);
    let end = (message - line * words::<B>()).min(words::<B>());
    let mut k = (line == 0) as usize;
    while k < end {
        payload.set(k, f(k, payload.get(k)));
        k += 1;
    }
    payload
}

/// Waits for a line of a message of this call.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// `from` is the start of line number `line` of a message from `peer`.
#[inline(always)]
pub unsafe fn receive_line<B: Block>(
    block: B,
    from: *const u8,
    flag: u64,
    line: usize,
    call: u64,
    peer: u32,
) -> Result<B::Line, Stop> {
    let mut turns = 0;
    loop {
        // SAFETY: the caller's promise
        if let Some(payload) = unsafe { block.load_line(from, flag) } {
            let theirs = payload.get(0);
            let differs = line == 0 && theirs != call;
            return if differs { Err(Stop::Mismatch { peer, theirs }) } else { Ok(payload) };
        }
        block.pause(&mut turns)?;
    }
}

/// The two links of a rank in a ring; a slot holds one message.
#[derive(Clone, Copy, Debug)]
pub struct LowLatency<B> {
    /// Who runs this.
    pub block: B,
    /// From the previous rank.
    pub from_previous: Link,
    /// To the next rank.
    pub to_next: Link,
    /// The call.
    pub context: CallContext,
}

/// What a step does with each line.
#[derive(Clone, Copy)]
struct Step<E, R> {
    op: R,
    own: Option<*const E>,
    keep: Option<*mut E>,
    receives: bool,
    sends: bool,
    last: bool,
    count: usize,
}

impl<B: Block> LowLatency<B> {
    #[inline(always)]
    fn slot(&self, link: &Link) -> *mut u8 {
        let stride = lines::<B>(self.context.slot_bytes) * B::LINE_BYTES;
        link.slots.wrapping_add((link.step % SLOTS) as usize * stride)
    }

    #[inline(always)]
    unsafe fn step<E: Element, R: Reduce<E>>(&mut self, step: Step<E, R>) -> Result<(), Stop> {
        let block = self.block;
        let (source, target) = (self.slot(&self.from_previous), self.slot(&self.to_next));
        // SAFETY: the caller of the public step promises its pointers; slots are ours between the waits and posts
        unsafe {
            if step.sends && self.to_next.step >= SLOTS {
                block.wait(self.to_next.head, self.to_next.step - SLOTS + 1)?;
            }
            let mut i = block.thread();
            while i < lines::<B>(step.count * size_of::<E>()) {
                let line = self.line(&step, source, i)?;
                if step.sends {
                    block.store_line(target.add(i * B::LINE_BYTES), line, self.to_next.step + 1);
                }
                if let Some(to) = step.keep {
                    decompose::<B, E>(block, line, to, step.count, i);
                }
                i += block.threads();
            }
            self.to_next.step += step.sends as u64;
            if step.receives {
                self.from_previous.step += 1;
                block.post(self.from_previous.head, self.from_previous.step);
            }
        }
        Ok(())
    }

    /// Line `i` of what the step sends and keeps.
    #[inline(always)]
    unsafe fn line<E: Element, R: Reduce<E>>(
        &self,
        step: &Step<E, R>,
        source: *const u8,
        i: usize,
    ) -> Result<B::Line, Stop> {
        let call = self.context.call;
        // SAFETY: as in `step`
        let own = step.own.map(|from| unsafe { compose(self.block, step.op, call, from, step.count, i) });
        if !step.receives {
            return Ok(own.unwrap_or(B::Line::zeroed()));
        }
        let link = &self.from_previous;
        let from = source.wrapping_add(i * B::LINE_BYTES);
        // SAFETY: as in `step`
        let received = unsafe { receive_line(self.block, from, link.step + 1, i, call, link.peer)? };
        let line = own.map_or(received, |own| combine::<B, E, R>(own, received, step.count, i));
        Ok(if step.last { finish::<B, E, R>(step.op, line, step.count, i) } else { line })
    }
}

/// Stands for "no operation" where elements only pass through.
#[derive(Clone, Copy)]
struct PassOn;

impl<E: Element> Reduce<E> for PassOn {
    #[inline(always)]
    fn combine(a: E, _b: E) -> E {
        a
    }

    #[inline(always)]
    fn combine_widened(a: f32, _b: f32) -> f32 {
        a
    }
}

impl<B: Block> Wire<B> for LowLatency<B> {
    #[inline(always)]
    unsafe fn send<E: Element, R: Reduce<E>>(&mut self, op: R, from: *const E, count: usize) -> Result<(), Stop> {
        let own = Some(from);
        // SAFETY: the caller's promise
        unsafe { self.step(Step { op, own, keep: None, receives: false, sends: true, last: false, count }) }
    }

    #[inline(always)]
    unsafe fn receive<E: Element>(&mut self, to: *mut E, count: usize) -> Result<(), Stop> {
        let keep = Some(to);
        // SAFETY: the caller's promise
        unsafe { self.step(Step { op: PassOn, own: None, keep, receives: true, sends: false, last: false, count }) }
    }

    #[inline(always)]
    unsafe fn receive_reduce_send<E: Element, R: Reduce<E>>(
        &mut self,
        op: R,
        from: *const E,
        count: usize,
    ) -> Result<(), Stop> {
        let own = Some(from);
        // SAFETY: the caller's promise
        unsafe { self.step(Step { op, own, keep: None, receives: true, sends: true, last: false, count }) }
    }

    #[inline(always)]
    unsafe fn receive_reduce_copy_send<E: Element, R: Reduce<E>>(
        &mut self,
        op: R,
        from: *const E,
        to: *mut E,
        count: usize,
    ) -> Result<(), Stop> {
        let (own, keep) = (Some(from), Some(to));
        // SAFETY: the caller's promise
        unsafe { self.step(Step { op, own, keep, receives: true, sends: true, last: true, count }) }
    }

    #[inline(always)]
    unsafe fn receive_copy_send<E: Element>(&mut self, to: *mut E, count: usize) -> Result<(), Stop> {
        let keep = Some(to);
        // SAFETY: the caller's promise
        unsafe { self.step(Step { op: PassOn, own: None, keep, receives: true, sends: true, last: false, count }) }
    }

    #[inline(always)]
    fn steps(&self) -> (u64, u64) {
        (self.from_previous.step, self.to_next.step)
    }
}
