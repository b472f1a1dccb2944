package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// size implements a flag for a number of bytes or elements in the format of nccl-tests. The units
// K, M and G are powers of 1024. They may be lower case, and i or B may follow.
type size int64

const sizeUnits = "KMG"

// maxSize is larger than the memory of any device.
const maxSize = 4 << 40

// String formats the number in the largest unit that divides it.
func (s *size) String() string {
	n := int64(*s)
	unit := ""
	for i := range sizeUnits {
		if n == 0 || n%1024 != 0 {
			break
		}

		n /= 1024
		unit = sizeUnits[i : i+1]
	}

	return strconv.FormatInt(n, 10) + unit
}

// Set parses a number with an optional unit.
func (s *size) Set(text string) error {
	digits := strings.ToUpper(text)
	digits = strings.TrimSuffix(digits, "B")
	digits = strings.TrimSuffix(digits, "I")
	factor := int64(1)
	for i := range sizeUnits {
		factorOfUnit := int64(1) << (10 * (i + 1))
		number, hasUnit := strings.CutSuffix(digits, sizeUnits[i:i+1])
		if hasUnit {
			digits = number
			factor = factorOfUnit
			break
		}
	}

	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return fmt.Errorf("%q is not a size such as 1024, 64K or 1Mi", text)
	}

	if n*factor > maxSize {
		limit := size(maxSize)
		return fmt.Errorf("%q is more than %v, the maximum for this command", text, &limit)
	}

	*s = size(n * factor)
	return nil
}

// Type returns the placeholder for the value in help texts.
func (s *size) Type() string { return "size" }

// sizeFlags holds the flags of a range of sizes to measure.
type sizeFlags struct {
	first, last size
	factor      int64 // ratio of consecutive sizes
}

// sizes returns the sizes from first to last. Each size is factor times the previous one.
func (f *sizeFlags) sizes() ([]int64, error) {
	first, last := int64(f.first), int64(f.last)
	switch {
	case first < 1 || last < first:
		return nil, fmt.Errorf("invalid sizes from %d to %d: the first must be 1 or more, and the "+
			"last no smaller", first, last)
	case f.factor < 2:
		return nil, fmt.Errorf("--factor is %d, but must be 2 or more", f.factor)
	}

	sizes := []int64{first}
	s := first
	for s <= last/f.factor { // s*f.factor cannot overflow
		s *= f.factor
		sizes = append(sizes, s)
	}

	return sizes, nil
}
