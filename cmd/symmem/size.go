package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// size is a flag for numbers such as 1024, 256Ki or 1Mi.
type size int64

var sizeUnits = []struct {
	suffix string
	factor int64
}{{"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}}

// String writes the number in the largest unit that divides it.
func (s *size) String() string {
	for _, u := range sizeUnits {
		if n := int64(*s); n != 0 && n%u.factor == 0 {
			return strconv.FormatInt(n/u.factor, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(*s), 10)
}

// Set reads a number with or without a unit.
func (s *size) Set(text string) error {
	digits, factor := text, int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			digits, factor = rest, u.factor
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return fmt.Errorf("%q is no size such as 1024, 256Ki or 1Mi", text)
	}
	*s = size(n * factor)
	return nil
}

// Type is what help calls the value.
func (s *size) Type() string { return "size" }

// checkSizes refuses a range of sizes that has none, or no end.
func checkSizes(first, last, factor int64) error {
	switch {
	case first < 1 || last < first:
		return fmt.Errorf("sizes from %d to %d are none: the first must be 1 or more, and the last "+
			"no smaller", first, last)
	case factor < 2:
		return fmt.Errorf("factor is %d, but must be 2 or more", factor)
	default:
		return nil
	}
}
