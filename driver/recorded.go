package driver

import "fmt"

// Recorded is a call's position in a capture. The zero value means that the call was not captured.
type Recorded struct {
	// Capture numbers the captures that contain calls of the group. Call numbers the group's calls
	// in this capture. Both start at 1 and are the same on all ranks.
	Capture, Call uint64
}

// String describes the position. It is empty for a call that was not captured.
func (r Recorded) String() string {
	if r == (Recorded{}) {
		return ""
	}

	return fmt.Sprintf("call %d of capture %d", r.Call, r.Capture)
}

// RecordedAs returns a copy of the call with the given position, which its Digest covers.
func (c Call) RecordedAs(position Recorded) Call {
	c.Recorded = position
	c.Digest = mix(mix(c.Digest^mix(position.Capture)) + position.Call)
	return c
}

// mix is a bijection in which each bit of the result depends on all bits of x.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
