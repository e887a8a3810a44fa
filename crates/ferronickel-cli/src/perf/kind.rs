//! The element types and operations by the names that nccl-tests gives them.

use ferronickel::RedOp;

/// An element type the benchmark can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Int8,
    Uint8,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Half,
    Float,
    Double,
    Bfloat16,
    Float8e4m3,
    Float8e5m2,
}

impl Type {
    /// Every type, in the order in which `-d all` runs them.
    pub const ALL: [Self; 12] = [
        Self::Int8,
        Self::Uint8,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Half,
        Self::Float,
        Self::Double,
        Self::Bfloat16,
        Self::Float8e4m3,
        Self::Float8e5m2,
    ];

    /// The name in the table and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Half => "half",
            Self::Float => "float",
            Self::Double => "double",
            Self::Bfloat16 => "bfloat16",
            Self::Float8e4m3 => "f8e4m3",
            Self::Float8e5m2 => "f8e5m2",
        }
    }

    /// Bytes of one element.
    pub const fn size_of(self) -> u64 {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8e4m3 | Self::Float8e5m2 => 1,
            Self::Half | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float => 4,
            Self::Int64 | Self::Uint64 | Self::Double => 8,
        }
    }
}

/// A reduction the benchmark can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
}

impl Op {
    /// Every operation, in the order in which `-o all` runs them.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg];

    /// The name in the table and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
        }
    }
}

impl From<Op> for RedOp {
    fn from(op: Op) -> Self {
        match op {
            Op::Sum => Self::Sum,
            Op::Prod => Self::Prod,
            Op::Max => Self::Max,
            Op::Min => Self::Min,
            Op::Avg => Self::Avg,
        }
    }
}

/// Reads `-d`: one type, or all.
pub fn parse_types(text: &str) -> Result<Vec<Type>, String> {
    let why = match text {
        "all" => return Ok(Type::ALL.to_vec()),
        _ => "not a type",
    };
    choose(text, &Type::ALL, |kind| kind.name(), why)
}

/// Reads `-o`: one operation, or all.
pub fn parse_ops(text: &str) -> Result<Vec<Op>, String> {
    let why = match text {
        "all" => return Ok(Op::ALL.to_vec()),
        "mulsum" => "sums with a factor for each rank are not available for all-reduce",
        _ => "not an operation",
    };
    choose(text, &Op::ALL, |op| op.name(), why)
}

fn choose<T: Copy>(text: &str, all: &[T], name: fn(T) -> &'static str, why: &str) -> Result<Vec<T>, String> {
    match all.iter().find(|&&candidate| name(candidate) == text) {
        Some(&found) => Ok(vec![found]),
        None => {
            let names: Vec<_> = all.iter().map(|&candidate| name(candidate)).collect();
            Err(format!("{why}; choose one of {}, all", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in Type::ALL {
            assert_eq!(parse_types(kind.name()), Ok(vec![kind]));
        }
        for op in Op::ALL {
            assert_eq!(parse_ops(op.name()), Ok(vec![op]));
        }
        assert_eq!(parse_types("all").map(|all| all.len()), Ok(12));
        assert_eq!(parse_ops("all").map(|all| all.len()), Ok(5));
    }

    #[test]
    fn what_is_missing_is_named_with_the_choices() {
        for (error, words) in [
            (parse_types("float32").unwrap_err(), ["not a type", "float,"]),
            (parse_types("f8").unwrap_err(), ["not a type", "f8e4m3, f8e5m2"]),
            (parse_ops("mulsum").unwrap_err(), ["not available", "avg"]),
            (parse_ops("SUM").unwrap_err(), ["not an operation", "sum,"]),
        ] {
            for word in words {
                assert!(error.contains(word), "{error}");
            }
        }
    }
}
