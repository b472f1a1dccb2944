package spin

// The layout of a line: a sequence number at 0, a digest at 8, the payload from 16 on.
const (
	LineBytes   = 64 // bytes of a line, which is aligned to as many
	LinePayload = 48 // bytes of payload that fit into a line
)
