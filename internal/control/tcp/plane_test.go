package tcp

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/control"
	"symmem/internal/control/controltest"
)

func TestMain(m *testing.M) {
	runMachineRank()
	controltest.Main(joinAsMember)
	goleak.VerifyTestMain(m)
}

func joinAsMember(ctx context.Context, m controltest.Member) (control.Plane, error) {
	p, err := Join(ctx, Config{
		Store: m.Store, Group: m.Group, Timeout: m.Timeout, Late: m.Late,
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

func TestPlaneContract(t *testing.T) { controltest.Run(t, joinAsMember) }

func BenchmarkPlane(b *testing.B) { controltest.Bench(b, joinAsMember) }
