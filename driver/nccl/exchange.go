package nccl

import (
	"context"
	"fmt"

	"symmem/driver/nccl/internal/direct"
	"symmem/internal/control"
)

// openExchange makes what kernels of our own need in the group.
func (c *communicator) openExchange(ctx context.Context) (err error) {
	c.direct.none, err = c.direct.exchange.Open(ctx, direct.Group{
		Config: &c.cfg, Plane: c.plane, Loans: &c.loans, Reports: &c.device.reports,
		Code: &c.device.collectives, Sharers: sharers(c.members, &c.device.self),
		NoFabric: c.withoutFabric(), Linked: func() error { return c.device.linked(c.members) },
	})
	return err
}

// withoutFabric says why ranks that are apart cannot map each other's memory; it is empty if they
// may be able to. All ranks say the same.
func (c *communicator) withoutFabric() string {
	where := "in several containers"
	if m := machines(c.members); m > 1 {
		where = fmt.Sprintf("on %d machines", m)
	}
	for i, m := range c.members {
		if m.NoFabric != "" {
			return fmt.Sprintf("the ranks are %s, and rank %d has no fabric handles: %s", where,
				c.cfg.Ranks[i], control.Printable(m.NoFabric))
		}
	}
	return ""
}
