//! Elements, operations, and the description of a call: the vocabulary every layer shares.

use std::fmt;

use ferronickel_kernels as kernels;

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
}

impl DataType {
    /// Every type, in the order of NCCL's numbers.
    pub const ALL: [DataType; 10] = [
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
    ];

    /// Bytes of one element.
    pub const fn size_of(self) -> usize {
        match self {
            DataType::Int8 | DataType::Uint8 => 1,
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

/// What every rank must agree upon in a call, in eight bytes that travel with the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CallDescription(u64);

/// A collective, with its number in a [`CallDescription`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Collective {
    AllReduce = 1,
}

impl CallDescription {
    /// The largest count that a call may have.
    pub const MAX_COUNT: usize = (1 << 48) - 1;

    /// Describes a call; `count` is at most [`MAX_COUNT`](Self::MAX_COUNT).
    pub fn new(collective: Collective, data_type: DataType, op: RedOp, count: usize) -> Self {
        debug_assert!(count <= Self::MAX_COUNT);
        let kind = (collective as u64) << 60 | (data_type as u64) << 56 | (op as u64) << 52;
        CallDescription(kind | count as u64)
    }

    pub fn to_bits(self) -> u64 {
        self.0
    }

    pub fn from_bits(bits: u64) -> Self {
        CallDescription(bits)
    }
}

impl fmt::Display for CallDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = |shift: u32| (self.0 >> shift & 0xf) as usize;
        let (Some(data_type), Some(op), 1) = (DataType::ALL.get(field(56)), RedOp::ALL.get(field(52)), field(60))
        else {
            // not written by any call of this version
            return write!(f, "an unknown call ({:#x})", self.0);
        };
        write!(f, "all_reduce(count {}, {data_type}, {op})", self.0 & Self::MAX_COUNT as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_keeps_all_it_describes() {
        for data_type in DataType::ALL {
            for op in RedOp::ALL {
                for count in [0, 1, 1 << 40, CallDescription::MAX_COUNT] {
                    let call = CallDescription::new(Collective::AllReduce, data_type, op, count);
                    assert_eq!(call, CallDescription::from_bits(call.to_bits()));
                    assert_eq!(call.to_string(), format!("all_reduce(count {count}, {data_type}, {op})"));
                }
            }
        }
        assert_eq!(CallDescription::from_bits(7).to_string(), "an unknown call (0x7)");
    }

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
