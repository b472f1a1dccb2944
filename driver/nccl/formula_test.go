package nccl

import (
	"slices"

	"symmem/driver"
)

// partThatDiffers returns which part of the elements is another one in two results.
func partThatDiffers(t driver.DataType, a, b []byte) float64 {
	size, differ := t.Size(), 0
	for at := 0; at < len(a); at += size {
		if !slices.Equal(a[at:at+size], b[at:at+size]) {
			differ++
		}
	}
	return float64(differ*size) / float64(len(a))
}
