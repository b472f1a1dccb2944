package spin

// A line consists of a sequence number at offset 0, a digest at 8, and the payload from 16 on.
const (
	LineBytes   = 64 // size and alignment of a line in bytes
	LinePayload = 48 // payload of a line in bytes
)
