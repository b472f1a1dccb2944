package spin

// A line has a sequence number at offset 0, a digest at offset 8, and the payload at offset 16.
const (
	LineBytes   = 64 // size and alignment of a line in bytes
	LinePayload = 48 // payload of a line in bytes
)
