//! minijinja set up as transformers sets up Jinja (`chat_template_utils._compile_jinja_template`).

use crate::python::{self, Charset, Dumps, KeyOrder};
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value, syntax::SyntaxConfig};

/// `trim_blocks` and `lstrip_blocks` on.
///
/// # Errors
/// Never, in fact; minijinja's builder can refuse delimiters.
pub fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
}

/// An environment with the functions and filters that chat templates use. `now` is in Unix seconds, UTC.
///
/// # Errors
/// Like [`syntax`].
pub fn environment<'a>(now: u64) -> Result<Environment<'a>, Error> {
    let mut env = Environment::new();
    env.set_syntax(syntax()?);
    env.set_recursion_limit(200);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_formatter(|out, _state, value| {
        out.write_str(&python::str(value))
            .map_err(|_| Error::new(ErrorKind::WriteFailure, "output"))
    });
    env.add_function(
        "raise_exception",
        |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    set_clock(&mut env, now);
    env.add_filter("tojson", tojson);
    // As Jinja has it: a string or mapping is a sequence, and `none` cannot be iterated over.
    env.add_test("sequence", |v: &Value| {
        matches!(
            v.kind(),
            ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
        )
    });
    env.add_test("iterable", |v: &Value| !v.is_none() && v.try_iter().is_ok());
    env.add_filter("indent", indent);
    env.add_filter("string", |v: Value| python::str(&v));
    Ok(env)
}

/// Sets what `strftime_now` answers from, Unix seconds.
pub fn set_clock(env: &mut Environment<'_>, now: u64) {
    env.add_function("strftime_now", move |format: String| strftime(now, &format));
}

/// Jinja's `indent(width=4, first=false, blank=false)`; unlike minijinja's it keeps a newline at the end.
#[allow(clippy::needless_pass_by_value)] // minijinja hands arguments over by value.
fn indent(
    text: String,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = match width {
        Some(width) => Some(width),
        None => options.get("width")?,
    };
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let indention = match &width {
        None => " ".repeat(4),
        Some(width) => match (width.as_str(), width.as_usize()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(n)) if n <= 256 => " ".repeat(n),
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "indent: expected a string or a width up to 256",
                ));
            }
        },
    };
    let mut out = String::with_capacity(text.len());
    for (i, line) in python::splitlines(&(text + "\n")).into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 {
            first
        } else {
            blank || !line.is_empty()
        } {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(out)
}

#[allow(clippy::needless_pass_by_value)] // minijinja hands arguments over by value.
fn tojson(value: Value, _positional: Rest<Value>, options: Kwargs) -> Result<Value, Error> {
    let mut layout = Dumps {
        indent: options.get::<Option<usize>>("indent")?,
        ..Dumps::default()
    };
    if layout.indent.is_some() {
        layout.item_separator = ",".into();
    }
    if let Some(pair) = options.get::<Option<Vec<String>>>("separators")? {
        let Ok([item, key]) = <[String; 2]>::try_from(pair) else {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: expected two separators",
            ));
        };
        (layout.item_separator, layout.key_separator) = (item, key);
    }
    if options.get::<Option<bool>>("sort_keys")?.unwrap_or(false) {
        layout.keys = KeyOrder::Sorted;
    }
    if options
        .get::<Option<bool>>("ensure_ascii")?
        .unwrap_or(false)
    {
        layout.charset = Charset::Ascii;
    }
    options.assert_all_used()?;
    python::dumps(&value, &layout).map(Value::from)
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

/// C's `strftime` in the C locale, UTC. Unknown conversions stay as they are.
fn strftime(now: u64, format: &str) -> String {
    let days = i64::try_from(now / 86_400).unwrap_or(0);
    let seconds = now % 86_400;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = civil(days);
    let weekday = (days + 3).rem_euclid(7) as usize;
    let year_day = days - days_before(year) + 1;
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut conversion = chars.next();
        let padded = conversion != Some('-');
        if !padded {
            conversion = chars.next();
        }
        let two = |n: u64| {
            if padded {
                format!("{n:02}")
            } else {
                n.to_string()
            }
        };
        let piece = match conversion {
            Some('Y') => year.to_string(),
            Some('y') => two(year.rem_euclid(100) as u64),
            Some('m') => two(u64::from(month)),
            Some('d') => two(u64::from(day)),
            Some('e') => format!("{day:2}"),
            Some('B') => MONTHS[month as usize - 1].to_owned(),
            Some('b' | 'h') => MONTHS[month as usize - 1][..3].to_owned(),
            Some('A') => DAYS[weekday].to_owned(),
            Some('a') => DAYS[weekday][..3].to_owned(),
            Some('H') => two(hour),
            Some('I') => two(hour12),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('j') => format!("{year_day:03}"),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('z') => "+0000".to_owned(),
            Some('Z') => "UTC".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        };
        out.push_str(&piece);
    }
    out
}

/// Days from 1970-01-01 to January 1 of `year`.
fn days_before(year: i64) -> i64 {
    let y = year - 1;
    365 * (year - 1970) + (y.div_euclid(4) - 492) - (y.div_euclid(100) - 19)
        + (y.div_euclid(400) - 4)
}

/// (year, month, day) of a day counted from 1970-01-01.
fn civil(days: i64) -> (i64, u32, u32) {
    let mut year = 1970 + days.div_euclid(366);
    while days_before(year + 1) <= days {
        year += 1;
    }
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [
        31,
        if leap { 29 } else { 28 },
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut rest = days - days_before(year);
    for (i, length) in (1u32..).zip(lengths) {
        if rest < length {
            return (year, i, u32::try_from(rest + 1).unwrap_or(1));
        }
        rest -= length;
    }
    (year, 12, 31)
}

#[cfg(test)]
mod tests;
