package reduce

import "unsafe"

// Copy copies size bytes. The ranges must not overlap unless they are the same.
func Copy(dst, src unsafe.Pointer, size int, hint Hint) {
	if dst == src || size <= 0 {
		return
	}

	if !hint.Stream || size < 2*lineBytes {
		copy(elements[byte](dst, 0, size), elements[byte](src, 0, size))
		return
	}

	headBytes := int(-uintptr(dst) % lineBytes)
	end := headBytes + (size-headBytes)&^(lineBytes-1)
	copy(elements[byte](dst, 0, headBytes), elements[byte](src, 0, headBytes))
	for from := headBytes; from < end; from += strideBytes {
		to := min(from+strideBytes, end)
		streamLines(unsafe.Add(dst, from), unsafe.Add(src, from), to-from)
	}

	fence()
	if end < size {
		// A pointer past the end of a Go slice is invalid, even for an empty copy.
		copy(elements[byte](dst, end, size), elements[byte](src, end, size))
	}
}

// Fill sets size bytes at dst to value.
func Fill(dst unsafe.Pointer, value byte, size int) {
	if size <= 0 {
		return
	}

	bytes := elements[byte](dst, 0, size)
	if value == 0 {
		clear(bytes)
		return
	}

	// The filled part doubles until it has patternBytes, which fit into the L1 cache.
	const patternBytes = 8 << 10
	bytes[0] = value
	for filledBytes := 1; filledBytes < size; {
		filledBytes += copy(bytes[filledBytes:], bytes[:min(filledBytes, patternBytes)])
	}
}
