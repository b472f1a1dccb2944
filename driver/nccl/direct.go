package nccl

import (
	"fmt"

	"symmem/driver"
)

// Direct tells whether a kernel of our own can run a call.
func (c *communicator) Direct(*driver.Call) error {
	return fmt.Errorf("the group has no exchange memory: %w", driver.ErrUnsupported)
}
