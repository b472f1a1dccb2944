package spin

// A line is a cache line with a sequence number at offset 0, a digest at offset 8, and the payload
// at offset 16.
const (
	LineBytes   = 64 // size and alignment
	LinePayload = 48
)
