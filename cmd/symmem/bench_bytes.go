package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// bytesFlag is a number of bytes as nccl-tests takes it: K, M and G are powers of 1024, in either
// case, with or without an i or a B behind them.
type bytesFlag int64

const byteUnits = "KMG"

// maxBytes is more than any device has, and far from what overflows when ranks multiply it.
const maxBytes = 4 << 40

// String writes the number in the largest unit that divides it.
func (b *bytesFlag) String() string {
	n, unit := int64(*b), ""
	for i := range byteUnits {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, byteUnits[i:i+1]
	}
	return strconv.FormatInt(n, 10) + unit
}

// Set reads a number with or without a unit.
func (b *bytesFlag) Set(text string) error {
	digits := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(text), "B"), "I")
	factor := int64(1)
	if last := len(digits) - 1; last >= 0 {
		if power := strings.IndexByte(byteUnits, digits[last]); power >= 0 {
			digits, factor = digits[:last], 1<<(10*(power+1))
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return fmt.Errorf("%q is no size such as 8, 64K or 1M", text)
	}
	if n*factor > maxBytes {
		most := bytesFlag(maxBytes)
		return fmt.Errorf("%q is more than %v, the most that this command takes", text, &most)
	}
	*b = bytesFlag(n * factor)
	return nil
}

// Type is what help calls the value.
func (b *bytesFlag) Type() string { return "bytes" }
