package nccl

import (
	"symmem/driver"
)

// message launches one end of a message.
func (p *pairOfRanks) message(
	r int, o driver.Operation, at uintptr, bytes int64, digest uint64,
) error {
	plan, err := p[r].group.Prepare(driver.Call{
		Operation: o, DataType: driver.Uint8, Count: bytes, Send: at, Recv: at, Root: 1 - r,
		Digest: digest,
	})
	if err != nil {
		return err
	}
	return p[r].group.Launch(p[r].stream, plan)
}
