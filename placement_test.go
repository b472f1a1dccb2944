package symmem_test

import (
	"errors"
	"testing"

	"symmem"
)

func TestPlacementNames(t *testing.T) {
	for _, p := range []symmem.Placement{symmem.PlaceByCreation, symmem.PlaceByAddress} {
		got, err := symmem.ParsePlacement(p.String())
		if err != nil || got != p {
			t.Errorf("ParsePlacement(%q) = %v, %v; want %v", p.String(), got, err, p)
		}
	}

	if _, err := symmem.ParsePlacement("sideways"); !errors.Is(err, symmem.ErrInvalid) {
		t.Errorf("ParsePlacement of an unknown name: got %v, want ErrInvalid", err)
	}
}

func TestInvalidPoolOptions(t *testing.T) {
	rt := openAlone(t)
	for _, o := range []symmem.PoolOptions{{Placement: 7}, {Capacity: -1}, {FirstSegment: -1}} {
		o.Domain = rt.World()
		if _, err := rt.NewPool(o); !errors.Is(err, symmem.ErrInvalid) {
			t.Errorf("NewPool(%+v): got %v, want ErrInvalid", o, err)
		}
	}
}
