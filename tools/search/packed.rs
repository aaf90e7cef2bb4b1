//! Numbers packed into as few bytes as they need, seven bits a byte, the low ones first.

/// Writes a number.
pub(crate) fn write_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads what was written, and stops where it makes no sense.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed<'a>(pub(crate) &'a [u8]);

impl<'a> Packed<'a> {
    /// The next number; none when there is none.
    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..63).step_by(7) {
            let byte = *self.take(1)?.first()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// The next bytes; none when there are fewer.
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::{Packed, write_number};

    #[test]
    fn numbers_come_back_and_cut_ones_do_not() {
        let numbers = [0, 1, 127, 128, 300, 1 << 20, (1 << 62) - 1];
        let mut bytes = Vec::new();
        numbers.iter().for_each(|number| write_number(*number, &mut bytes));
        let mut packed = Packed(&bytes);
        for number in numbers {
            assert_eq!(packed.number(), Some(number));
        }
        assert_eq!((packed.number(), packed.0.len()), (None, 0));
        assert_eq!(Packed(&[0x80]).number(), None);
        assert_eq!(Packed(&[0xff; 12]).number(), None);
    }
}
