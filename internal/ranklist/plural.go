package ranklist

import "fmt"

// Plural returns how many there are of something, such as "1 rank" and "2 ranks".
func Plural[N int | int64 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
