package spin

// A line consists of a sequence number at offset 0, a digest at offset 8, and the payload,
// which starts at offset 16.
const (
	LineBytes   = 64 // size and alignment of a line in bytes
	LinePayload = 48 // payload of a line in bytes
)
