package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// size is the value of a flag, in bytes or elements. 64K, 64k, 64Ki and 64KiB all mean 64 * 1024.
type size int64

const (
	sizeUnits = "KMG"
	unitRatio = 1024 // each unit is this multiple of the previous one
)

const maxSize = 4 << 40 // 4 Ti, more than the memory of any device

// String formats the number in the largest unit that divides it.
func (s size) String() string {
	n := int64(s)
	unit := ""
	for i := range sizeUnits {
		isMultiple := n != 0 && n%unitRatio == 0
		if !isMultiple {
			break
		}

		n /= unitRatio
		unit = string(sizeUnits[i])
	}

	return strconv.FormatInt(n, 10) + unit
}

// Set parses a number with an optional unit.
func (s *size) Set(text string) error {
	number := strings.ToUpper(text)
	number = strings.TrimSuffix(number, "B")
	number = strings.TrimSuffix(number, "I")
	factor := int64(1)
	unitFactor := int64(1)
	for i := range sizeUnits {
		unitFactor *= unitRatio
		digits, hasUnit := strings.CutSuffix(number, string(sizeUnits[i]))
		if hasUnit {
			number = digits
			factor = unitFactor
			break
		}
	}

	n, err := strconv.ParseInt(number, 10, 64)
	isValid := err == nil && n >= 0 && n <= math.MaxInt64/factor
	if !isValid {
		return fmt.Errorf("%q is not a size such as 1024, 64K or 1Mi", text)
	}

	if n*factor > maxSize {
		return fmt.Errorf("%q is more than %v, the maximum for this command", text, size(maxSize))
	}

	*s = size(n * factor)
	return nil
}

// Type returns the name of the value in help texts.
func (s *size) Type() string { return "size" }

// sizeFlags holds the flags for a range of sizes. For example, first 1K, last 5K and factor 2
// select 1K, 2K and 4K.
type sizeFlags struct {
	first, last size
	factor      int64 // ratio of consecutive sizes
}

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
	current := first
	for current <= last/f.factor { // that is, current*factor <= last, without overflow
		current *= f.factor
		sizes = append(sizes, current)
	}

	return sizes, nil
}

// nameValue is the pflag.Value of a flag that takes one of several names.
type nameValue[T fmt.Stringer] struct {
	value *T
	parse func(string) (T, error)
}

// newNameValue returns a pflag.Value that sets *value, whose current value is the default.
func newNameValue[T fmt.Stringer](value *T, parse func(string) (T, error)) *nameValue[T] {
	return &nameValue[T]{value, parse}
}

// String returns the name of the value.
func (n *nameValue[T]) String() string { return (*n.value).String() }

// Set parses a name.
func (n *nameValue[T]) Set(text string) (err error) {
	*n.value, err = n.parse(text)
	return err
}

// Type returns the name of the value in help texts.
func (n *nameValue[T]) Type() string { return "name" }

// complete offers values of a flag for shell completion. The flag must exist.
func complete(cmd *cobra.Command, flag string, values ...string) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}
