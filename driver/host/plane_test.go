package host

import (
	"context"
	"errors"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/control/controltest"
)

// guest is a plane with the device that was opened for it.
type guest struct {
	control.Plane
	device *Device
}

func (g *guest) Close() error { return errors.Join(g.Plane.Close(), g.device.Close()) }

func joinAsGuest(ctx context.Context, m controltest.Member) (control.Plane, error) {
	d, err := Open(ctx, driver.Config{
		Rank: m.Rank(), Size: len(m.Group.Ranks), Store: m.Store, Timeout: m.Timeout,
	})
	if err != nil {
		return nil, err
	}
	p, err := d.Join(ctx, m.Group)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return &guest{p, d}, nil
}

func TestPlanesKeepTheContract(t *testing.T) { controltest.Run(t, joinAsGuest) }

func BenchmarkPlane(b *testing.B) { controltest.Bench(b, joinAsGuest) }
