package driver

import "fmt"

// Recorded is the place of a call that was put into a capture. The zero value is that of a call
// which was not.
type Recorded struct {
	// Capture numbers the captures that hold calls of the group, Call the group's calls within one.
	// Both start at 1 and are equal on all ranks.
	Capture, Call uint64
}

// String says the place in words; it is empty for a call in no capture.
func (r Recorded) String() string {
	if r == (Recorded{}) {
		return ""
	}
	return fmt.Sprintf("call %d of capture %d", r.Call, r.Capture)
}

// RecordedAs returns the call at its position in a capture. Its Digest covers the position, so that
// ranks which replay different captures, or make the same call outside of one, differ.
func (c Call) RecordedAs(at Recorded) Call {
	c.Recorded = at
	c.Digest = scatter(scatter(c.Digest^scatter(at.Capture)) + at.Call)
	return c
}

// scatter makes each bit of the result depend on all of x. Different words stay different.
func scatter(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
