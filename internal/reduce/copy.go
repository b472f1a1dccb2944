package reduce

import "unsafe"

// Copy copies size bytes from src to dst. The ranges must not overlap unless they are the same.
func Copy(dst, src unsafe.Pointer, size int, hint Hint) {
	if dst == src || size <= 0 {
		return
	}
	if !hint.Stream || size < 2*lineBytes {
		copy(elements[byte](dst, 0, size), elements[byte](src, 0, size))
		return
	}
	head := int(-uintptr(dst) % lineBytes)
	end := head + (size-head)&^(lineBytes-1)
	copy(elements[byte](dst, 0, head), elements[byte](src, 0, head))
	for from := head; from < end; from += stride {
		to := min(from+stride, end)
		streamLines(unsafe.Add(dst, from), unsafe.Add(src, from), to-from)
	}
	fence()
	if end < size {
		// Do not form a pointer past the end of a Go slice, even for an empty copy.
		copy(elements[byte](dst, end, size), elements[byte](src, end, size))
	}
}

// Fill sets size bytes at dst to value.
func Fill(dst unsafe.Pointer, value byte, size int) {
	if size <= 0 {
		return
	}
	all := elements[byte](dst, 0, size)
	if value == 0 {
		clear(all)
		return
	}
	// The filled part doubles until it has pattern bytes, which fit into the L1 cache.
	const pattern = 8 << 10
	all[0] = value
	for done := 1; done < size; {
		done += copy(all[done:], all[:min(done, pattern)])
	}
}
