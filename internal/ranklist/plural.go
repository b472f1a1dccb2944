package ranklist

import "fmt"

// Plural formats a number and a noun, such as "1 rank" or "2 ranks".
func Plural[N int | int64 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}

	return fmt.Sprintf("%d %ss", n, noun)
}
