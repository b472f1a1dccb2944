package direct

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
	"symmem/internal/control/shm"
)

// fetchPlane records a failure and the ranks whose memory was requested.
type fetchPlane struct {
	control.Plane
	fetches []int
	cause   error
}

func (p *fetchPlane) NoteFetch(rank int) (end func()) {
	p.fetches = append(p.fetches, rank)
	return func() {}
}

func (p *fetchPlane) Fail(err error) error {
	p.cause = err
	return err
}

// TestErrorNamesRankThatDoesNotShareExchangeMemory requests the exchange memory of a rank that does
// not answer, as a stopped one.
func TestErrorNamesRankThatDoesNotShareExchangeMemory(t *testing.T) {
	machine, err := shm.Open(t.Context(), driver.Config{Size: 2, Store: &drivertest.Store{}})
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	p := &fetchPlane{}
	e := &Exchange{addresses: make([]uintptr, 2), group: Group{
		Config: &driver.GroupConfig{ID: "pair", Ranks: []int{0, 1}}, Plane: p,
		Sharing: &memory.Sharing{Exporter: &memory.Exporter{Machine: machine}},
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = e.mapPeers(ctx, exchangeKey(e.group.Config), make([]capabilities, 2))
	late := &driver.TimeoutError{}
	if !errors.As(err, &late) || !slices.Equal(late.Missing, []int{1}) || p.cause == nil {
		t.Errorf("mapPeers = %v with cause %v, want a TimeoutError that names rank 1", err, p.cause)
	}

	if !slices.Equal(p.fetches, []int{1}) {
		t.Errorf("requests were noted for ranks %v, want rank 1", p.fetches)
	}
}

// TestStopWithoutCUDA stops kernels while CUDA calls are not allowed because a kernel is stuck.
// Stop must still write the word in host memory.
func TestStopWithoutCUDA(t *testing.T) {
	gpu.Stuck.Store(true)
	defer gpu.Stuck.Store(false)
	report := &kernels.Report{}
	x := Exchange{report: report}
	x.Stop()
	end := (*kernels.Fault)(unsafe.Add(unsafe.Pointer(report), kernels.EndOffset))
	if *end != kernels.Aborted {
		t.Errorf("got word %d in host memory, want %d", *end, kernels.Aborted)
	}
}
