package tuning

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes.
type Size int64

// sizeUnits lists the units from the largest to the smallest. "B", the suffix of all, is the last.
var sizeUnits = []struct {
	name  string
	bytes Size
}{
	{name: "GiB", bytes: 1 << 30},
	{name: "MiB", bytes: 1 << 20},
	{name: "KiB", bytes: 1 << 10},
	{name: "B", bytes: 1},
}

// String uses the largest unit that divides the size, for example 1792KiB or 100B.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s != 0 && s%u.bytes == 0 {
			return strconv.FormatInt(int64(s/u.bytes), 10) + u.name
		}
	}

	return "0B" // The last unit, 1, divides every other size.
}

// ParseSize parses the format of String.
func ParseSize(text string) (Size, error) {
	for _, u := range sizeUnits {
		digits, hasUnit := strings.CutSuffix(text, u.name)
		if !hasUnit {
			continue
		}

		n, err := strconv.ParseInt(digits, 10, 64)
		wouldOverflow := n > math.MaxInt64/int64(u.bytes)
		if err != nil || n < 0 || wouldOverflow {
			break
		}

		return Size(n) * u.bytes, nil
	}

	return 0, fmt.Errorf("%q is not a size such as 100B, 64KiB or 1MiB", text)
}

// MarshalJSON encodes the size as a string with a unit.
func (s Size) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, s.String()), nil
}

// UnmarshalJSON decodes a string with a unit or a whole number of bytes.
func (s *Size) UnmarshalJSON(encoded []byte) error {
	var text string
	if err := json.Unmarshal(encoded, &text); err != nil {
		n, err := strconv.ParseInt(string(encoded), 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("%s is not a size such as 65536 or \"64KiB\"", encoded)
		}

		*s = Size(n)
		return nil
	}

	parsed, err := ParseSize(text)
	*s = parsed
	return err
}
