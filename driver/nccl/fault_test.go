package nccl

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/sys/systest"
)

// failures lists CUDA and NCCL calls that fail on one of two ranks. Each case runs in a separate
// process, because the software GPU reads its list of failures only once.
var failures = []struct{ name, fail, want string }{
	{
		name: "no GPU",
		fail: "cuDevicePrimaryCtxRetain:2", want: "cuDevicePrimaryCtxRetain",
	},
	{
		name: "no communicator",
		fail: "ncclCommInitRankScalable:2", want: "ncclCommInitRankScalable",
	},
	{
		name: "no memory for messages",
		fail: "cuMemHostRegister_v2:2", want: "cuMemHostRegister",
	},
	{
		name: "no window",
		fail: "ncclCommWindowRegister:2", want: "ncclCommWindowRegister",
	},
}

// failingVariable is an environment variable for child processes of TestOneRankFails.
const failingVariable = "SYMMEM_TEST_FAILING"

// TestOneRankFails makes a CUDA or NCCL call fail on one rank. Both ranks must report the reason
// without waiting for a timeout.
func TestOneRankFails(t *testing.T) {
	if want := os.Getenv(failingVariable); want != "" {
		checkBothRanksFail(t, want)
		return
	}
	requireSoftGPU(t, "can inject failures")
	for _, f := range failures {
		t.Run(f.name, func(t *testing.T) {
			c := systest.Command(t, systest.Patience, os.Args[0],
				"-test.run=^TestOneRankFails$", "-test.timeout=1m")
			c.Env = append(os.Environ(), failingVariable+"="+f.want, "SOFTGPU_FAIL="+f.fail)
			if output, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, output)
			}
		})
	}
}

// requireSoftGPU skips the test on a real GPU. has completes the reason.
func requireSoftGPU(t *testing.T, has string) {
	t.Helper()
	if !usesSoftGPU(t) {
		t.Skip(fmt.Errorf("only the software GPU %s: %w", has, driver.ErrUnsupported))
	}
}

// usesSoftGPU reports whether the tests run on a software simulation of GPUs.
func usesSoftGPU(t *testing.T) bool {
	t.Helper()
	name, err := modelName()
	if err != nil {
		t.Fatal(err)
	}
	return isSoft(name)
}

// checkBothRanksFail checks that each rank finds the reason, in its own error or in the errors that
// ranks exchange on LaneFault.
func checkBothRanksFail(t *testing.T, want string) {
	p, store, errs := newPair(), &drivertest.Store{}, [2]error{}
	var all sync.WaitGroup
	for r := range errs {
		all.Go(func() {
			if errs[r] = p.openOne(t, r, store, 10*time.Second); errs[r] != nil {
				errs[r] = p.joinReports(t, r, errs[r])
			}
		})
	}
	all.Wait()
	for r, err := range errs {
		var timeoutErr *driver.TimeoutError
		if err == nil || errors.As(err, &timeoutErr) || !strings.Contains(err.Error(), want) {
			t.Errorf("rank %d: got %v, want an error from %s", r, err, want)
		}
	}
}

// joinReports joins an error with the errors that the ranks exchange, if the group is open.
func (p *pairOfRanks) joinReports(t *testing.T, r int, err error) error {
	if p[r].group == nil {
		return err
	}
	reports, exchangeErr := p[r].group.Exchange(t.Context(), driver.LaneFault, []byte(err.Error()))
	for _, text := range reports {
		err = errors.Join(err, errors.New(string(text)))
	}
	return errors.Join(err, exchangeErr)
}

// TestFinishedStreamHasNoFault aborts a group after its call has completed, but before the watcher
// has noticed that the stream is idle.
func TestFinishedStreamHasNoFault(t *testing.T) {
	p := openPair(t, 20*time.Second)
	runBoth(t, func(r int) error {
		_, err := p.sum(t.Context(), r, driver.PathPlain, 1)
		return err
	})
	c, s := p[0].group.(*communicator), p[0].stream.(*stream.Stream)
	c.mu.Lock()
	c.busy.Add(s)
	c.Abort(errAborted)
	c.mu.Unlock()
	if err := s.Synchronize(t.Context()); err != nil {
		t.Errorf("Synchronize = %v, want nil", err)
	}
	p.closeAll(t)
}

// TestCollectiveThatEndsEarlyIsAFault simulates a collective that ends before all ranks have
// launched it.
func TestCollectiveThatEndsEarlyIsAFault(t *testing.T) {
	p := openPair(t, 20*time.Second)
	c, s := p[0].group.(*communicator), p[0].stream.(*stream.Stream)
	prepared, err := prepare(c, p.call(0, driver.PathPlain))
	if err != nil {
		t.Fatal(err)
	}
	// The stream is idle, because the call is recorded but not launched.
	s.Mu.Lock()
	c.mu.Lock()
	c.recordLaunch(s, prepared.(*plan), c.plane.Submit())
	c.mu.Unlock()
	s.Mu.Unlock()
	err = s.Synchronize(t.Context())
	if err == nil || !strings.Contains(err.Error(), "ended before") {
		t.Errorf("Synchronize = %v, want an error about a collective that ended early", err)
	}
	if c.Cause() == nil {
		t.Error("the group has not failed")
	}
	_ = p[1].stream.Synchronize(t.Context())
	p.closeAll(t)
}
