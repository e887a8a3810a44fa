//! Numbers as the table shows them. Scripts read these columns, so the text is that of C's printf.

/// A time or a bandwidth in a column of `width`: as many of two decimals as fit, and an exponent where not even
/// the whole number fits.
pub fn fitted(value: f64, width: usize) -> String {
    let text = (0..=2).rev().map(|decimals| format!("{value:.decimals$}")).find(|text| text.len() <= width);
    let text = text.unwrap_or_else(|| exponential(value, usize::from(width >= 7)));
    format!("{text:>width$}")
}

/// C's `%.Ne`: a mantissa with so many decimals, and an exponent with a sign and at least two digits.
pub fn exponential(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        // Infinities and NaN have no exponent.
        None => text,
    }
}

/// C's `%g`: six significant digits without trailing zeros, with an exponent where it is below -4 or above 5.
pub fn general(value: f64) -> String {
    const DIGITS: i32 = 6;
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { value.to_string().to_lowercase() };
    }
    let rounded = exponential(value, DIGITS as usize - 1);
    let (mantissa, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..DIGITS).contains(&exponent) {
        let decimals = (DIGITS - 1 - exponent) as usize;
        return without_trailing_zeros(&format!("{value:.decimals$}")).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", without_trailing_zeros(mantissa), exponent.abs())
}

fn without_trailing_zeros(text: &str) -> &str {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_give_way_to_digits() {
        for (value, text) in [
            (0.0, "   0.00"),
            (6.125, "   6.12"),
            (9999.99, "9999.99"),
            (9999.999, "10000.0"),
            (12157.1, "12157.1"),
            (99999.96, " 100000"),
            (1234567.4, "1234567"),
            (12345678.0, "1.2e+07"),
            (f64::INFINITY, "    inf"),
            (f64::NAN, "    NaN"),
        ] {
            assert_eq!(fitted(value, 7), text, "{value}");
        }
        for (value, text) in [
            (0.004, "  0.00"),
            (22.08, " 22.08"),
            (999.994, "999.99"),
            (1234.56, "1234.6"),
            (123456.7, "123457"),
            (1.5e7, " 2e+07"),
        ] {
            assert_eq!(fitted(value, 6), text, "{value}");
        }
    }

    #[test]
    fn exponents_have_a_sign_and_two_digits() {
        assert_eq!(exponential(12345678.0, 1), "1.2e+07");
        assert_eq!(exponential(0.00012, 0), "1e-04");
        assert_eq!(exponential(1e120, 1), "1.0e+120");
    }

    #[test]
    fn general_is_short() {
        for (value, text) in [
            (0.0, "0"),
            (7.0, "7"),
            (57.59, "57.59"),
            (8.49873, "8.49873"),
            (0.86666, "0.86666"),
            (100000.0, "100000"),
            (999999.0, "999999"),
            (999999.5, "1e+06"),
            (1234567.0, "1.23457e+06"),
            (0.0001, "0.0001"),
            (0.00001234, "1.234e-05"),
            (-2.5, "-2.5"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(general(value), text, "{value}");
        }
    }
}
