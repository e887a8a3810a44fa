//! LL, low latency: every line carries its own flag, so that data and notice arrive together.
//!
//! A *message* is a sequence of eight-byte words cut into lines. Its first word describes the call; the others are
//! the elements. The receiver checks the first word, so that a call which differs is noticed with the first line.

use super::{CallContext, Link, Links, SLOTS, Step, Wire, count_step};
use crate::block::{Block, Payload, Stop};
use crate::element::Element;
use crate::reduce::Reduce;

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
            let prepared = if op.prepares() { op.prepare_word(own) } else { own };
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
pub fn combine<B: Block, E: Element, R: Reduce<E>>(
    op: R,
    a: B::Line,
    b: B::Line,
    count: usize,
    line: usize,
) -> B::Line {
    each_word::<B, E>(a, count, line, |k, word| op.combine_words(word, b.get(k)))
}

/// Finishes the elements in line `line` of a message of `count` elements.
#[inline(always)]
pub fn finish<B: Block, E: Element, R: Reduce<E>>(op: R, payload: B::Line, count: usize, line: usize) -> B::Line {
    if !op.finishes() {
        return payload;
    }
    each_word::<B, E>(payload, count, line, |_, word| op.finish_word(word))
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

/// What a thread's part of a message came to, as the whole block sees it: no thread leaves before the others know.
///
/// # Errors
/// The thread's own error, or [`Stop::Aborted`] if only other threads had one.
#[inline(always)]
pub fn all_or_none<B: Block>(block: B, part: Result<(), Stop>) -> Result<(), Stop> {
    if let Err(stop) = part {
        // the others may be waiting for lines that will not come
        block.raise(stop);
    }
    if block.any(part.is_err()) { part.and(Err(Stop::Aborted)) } else { Ok(()) }
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

/// The protocol, for one call; a slot of a link holds one message.
#[derive(Clone, Copy, Debug)]
pub struct LowLatency<B> {
    /// Who runs this.
    pub block: B,
    /// The call.
    pub context: CallContext,
}

impl<B: Block> LowLatency<B> {
    /// Line `i` of a link's next slot.
    #[inline(always)]
    unsafe fn at(self, link: *const Link, i: usize) -> *mut u8 {
        let stride = lines::<B>(self.context.slot_bytes) * B::LINE_BYTES;
        // SAFETY: the step's links are the caller's
        unsafe { (*link).slots.wrapping_add(((*link).step % SLOTS) as usize * stride + i * B::LINE_BYTES) }
    }

    /// Line `i` of what the step sends and keeps.
    #[inline(always)]
    unsafe fn line<E: Element, R: Reduce<E>>(
        self,
        step: &Step<E, R, impl Links, impl Links>,
        i: usize,
    ) -> Result<B::Line, Stop> {
        let call = self.context.call;
        // SAFETY: as in `step`
        unsafe {
            let own = || compose(self.block, step.op, call, step.own, step.count, i);
            let receive = |k: usize| {
                let link = step.from.link(k);
                receive_line(self.block, self.at(link, i), (*link).step + 1, i, call, (*link).peer)
            };
            let has_own = !step.own.is_null();
            let received = step.from.links();
            let first = if has_own && step.before == 0 {
                own()
            } else if received > 0 {
                receive(0)?
            } else {
                B::Line::zeroed()
            };
            let mut sum = first;
            let mut k = !(has_own && step.before == 0) as usize;
            while k < received {
                if has_own && step.before == k && k > 0 {
                    sum = combine::<B, E, R>(step.op, sum, own(), step.count, i);
                }
                sum = combine::<B, E, R>(step.op, sum, receive(k)?, step.count, i);
                k += 1;
            }
            if has_own && received > 0 && step.before == received {
                sum = combine::<B, E, R>(step.op, sum, own(), step.count, i);
            }
            Ok(if step.last { finish::<B, E, R>(step.op, sum, step.count, i) } else { sum })
        }
    }

    /// Moves the lines that fall to this thread.
    #[inline(always)]
    unsafe fn lines<E: Element, R: Reduce<E>>(self, step: &Step<E, R, impl Links, impl Links>) -> Result<(), Stop> {
        let block = self.block;
        let mut i = block.thread();
        while i < lines::<B>(step.count * size_of::<E>()) {
            // SAFETY: as in `step`
            unsafe {
                let line = self.line(step, i)?;
                let mut k = 0;
                while k < step.to.links() {
                    let link = step.to.link(k);
                    block.store_line(self.at(link, i), line, (*link).step + 1);
                    k += 1;
                }
                if !step.keep.is_null() {
                    decompose::<B, E>(block, line, step.keep, step.count, i);
                }
            }
            i += block.threads();
        }
        Ok(())
    }
}

impl<B: Block> Wire<B> for LowLatency<B> {
    // unoptimised, an algorithm would have every step on its stack at once
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn step<E: Element, R: Reduce<E>>(self, step: Step<E, R, impl Links, impl Links>) -> Result<(), Stop> {
        let block = self.block;
        let (from, to) = (step.from, step.to);
        // SAFETY: the caller's promise; slots are ours between the waits and the posts
        unsafe {
            let mut k = 0;
            while k < to.links() {
                let link = to.link(k);
                if (*link).step >= SLOTS {
                    block.wait((*link).head, (*link).step - SLOTS + 1)?;
                }
                k += 1;
            }
            all_or_none(block, self.lines(&step))?;
            let mut k = 0;
            while k < from.links() {
                let link = from.link(k);
                block.post((*link).head, (*link).step + 1);
                k += 1;
            }
            count_step(block, from);
            count_step(block, to);
            block.barrier();
        }
        Ok(())
    }

    /// Nothing is ever lent.
    #[inline(always)]
    unsafe fn settle(self, _to: impl Links, _bytes: usize) -> Result<(), Stop> {
        Ok(())
    }

    #[inline(always)]
    fn slot<E: Element>(&self) -> usize {
        self.context.slot_bytes / 16 * 16 / size_of::<E>()
    }
}
