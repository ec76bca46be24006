//! Numbers for moments that nobody plans.

/// Enough for moments that nobody plans; the seed is printed.
pub struct Random {
    pub seed: u64,
    state: u64,
}

impl Random {
    /// Of this moment.
    pub fn seeded() -> Random {
        let seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64) | 1;
        Random { seed, state: seed }
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        // xorshift64 (Marsaglia 2003).
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % bound
    }
}
