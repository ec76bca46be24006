//! Bus addresses, as far as Unix sockets go.

use std::path::PathBuf;

/// The Unix sockets of a bus address (specification, "Server Addresses"). An abstract one comes with a leading NUL,
/// as the system has it.
pub(crate) fn socket_paths(address: &str) -> Vec<PathBuf> {
    address
        .split(';')
        .filter_map(|one| one.strip_prefix("unix:"))
        .flat_map(|keys| keys.split(','))
        .filter_map(|pair| match pair.split_once('=')? {
            ("path", path) => unescape(path),
            ("abstract", name) => unescape(name).map(|name| format!("\0{name}")),
            _ => None,
        })
        .map(PathBuf::from)
        .collect()
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let paths = |address| socket_paths(address);
        assert_eq!(paths("unix:path=/run/user/1000/bus"), [PathBuf::from("/run/user/1000/bus")]);
        assert_eq!(
            paths("tcp:host=x,port=1;unix:guid=00,path=/tmp/a%20b;unix:abstract=/tmp/x,guid=00"),
            [PathBuf::from("/tmp/a b"), PathBuf::from("\0/tmp/x")]
        );
        assert!(paths("unix:runtime=yes").is_empty());
        assert!(paths("unixexec:path=/bin/sh").is_empty());
        assert!(paths("unix:path=%zz").is_empty());
    }
}
