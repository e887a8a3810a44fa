//! The loops over elements, each compiled for every width of vector, so that the widest which the processor has can be
//! taken when a call runs.

use ferronickel_kernels::element::Element;
use ferronickel_kernels::reduce::Reduce;

use super::halves::{self, Widened};

/// Defines a loop once for each width of vector, and a function that takes the widest the processor has.
macro_rules! at_every_width {
    ($(#[$doc:meta])* $visibility:vis fn $name:ident<$($generic:ident: $bound:path),*>($($argument:ident: $t:ty),*) $body:block) => {
        $(#[$doc])*
        #[inline(always)]
        $visibility unsafe fn $name<$($generic: $bound),*>($($argument: $t),*) {
            #[inline(always)]
            unsafe fn any<$($generic: $bound),*>($($argument: $t),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn avx2<$($generic: $bound),*>($($argument: $t),*) {
                    // SAFETY: the caller's promise
                    unsafe { any::<$($generic),*>($($argument),*) }
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                unsafe fn avx512<$($generic: $bound),*>($($argument: $t),*) {
                    // SAFETY: the caller's promise
                    unsafe { any::<$($generic),*>($($argument),*) }
                }
                // SAFETY: the processor has what the function is compiled for; the rest is the caller's promise
                unsafe {
                    match width() {
                        Width::Avx512 => avx512::<$($generic),*>($($argument),*),
                        Width::Avx2 => avx2::<$($generic),*>($($argument),*),
                        Width::Baseline => any::<$($generic),*>($($argument),*),
                    }
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            // SAFETY: the caller's promise
            unsafe { any::<$($generic),*>($($argument),*) }
        }
    };
}

/// `to[i] = a[i] op b[i]`; `to` may be `a`, they do not overlap otherwise.
///
/// # Safety
/// The ranges are valid.
pub unsafe fn combine<E: Element, R: Widened<E>>(op: R, to: *mut E, a: *const E, b: *const E, count: usize) {
    // SAFETY: the caller's promise; what the first leaves is within the ranges
    unsafe {
        let done = halves::combine::<E, R>(to, a, b, count);
        if std::ptr::eq(to, a) {
            combine_into::<E, R>(op, to.add(done), b.add(done), count - done);
        } else {
            combine_apart::<E, R>(op, to.add(done), a.add(done), b.add(done), count - done);
        }
    }
}

at_every_width! {
    /// What [`combine`] does where no two ranges are the same.
    fn combine_apart<E: Element, R: Reduce<E>>(op: R, to: *mut E, a: *const E, b: *const E, count: usize) {
        for i in 0..count {
            // SAFETY: `i` is less than the count
            unsafe { to.add(i).write(op.combine(a.add(i).read(), b.add(i).read())) };
        }
    }
}

at_every_width! {
    /// What [`combine`] does in place.
    fn combine_into<E: Element, R: Reduce<E>>(op: R, to: *mut E, b: *const E, count: usize) {
        for i in 0..count {
            // SAFETY: `i` is less than the count
            unsafe { to.add(i).write(op.combine(to.add(i).read(), b.add(i).read())) };
        }
    }
}

at_every_width! {
    /// `to[i]` becomes what the operation makes of a rank's own `from[i]`; they do not overlap.
    pub fn prepare<E: Element, R: Reduce<E>>(op: R, to: *mut E, from: *const E, count: usize) {
        for i in 0..count {
            // SAFETY: `i` is less than the count
            unsafe { to.add(i).write(op.prepare(from.add(i).read())) };
        }
    }
}

at_every_width! {
    /// `range[i]` becomes the final element.
    pub fn finish<E: Element, R: Reduce<E>>(op: R, range: *mut E, count: usize) {
        for i in 0..count {
            // SAFETY: `i` is less than the count
            unsafe { range.add(i).write(op.finish(range.add(i).read())) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
enum Width {
    Avx512,
    Avx2,
    Baseline,
}

/// The widest vectors of this processor; the standard library remembers what it found.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn width() -> Width {
    let has_avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    if has_avx512 {
        Width::Avx512
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
        Width::Avx2
    } else {
        Width::Baseline
    }
}
