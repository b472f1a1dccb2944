package host

import (
	"fmt"

	"symmem/driver"
)

// AdoptStream makes a new stream: there are no others on the host, so the handle is only a name.
func (d *Device) AdoptStream(uintptr) (driver.AdoptedStream, error) {
	return &stream{device: d}, nil
}

// Captured reports whether the stream is being captured.
func (s *stream) Captured() (bool, error) { return s.Capturing(), nil }

// Drop is Close: the stream has no other owner.
func (s *stream) Drop() error { return s.Close() }

// AdoptCommunicator refuses: no other library has communicators over this memory.
func (d *Device) AdoptCommunicator(handle uintptr) (driver.Guest, error) {
	return nil, fmt.Errorf("adopting communicator %#x on the host: %w", handle, driver.ErrUnsupported)
}
