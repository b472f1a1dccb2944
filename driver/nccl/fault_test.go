package nccl

import (
	"errors"
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

// failures are what can fail on one rank of two. The software GPU reads its failures once, so each
// is a process of its own.
var failures = []struct{ name, fail, want string }{
	{
		name: "a rank without a GPU keeps nobody waiting",
		fail: "cuDevicePrimaryCtxRetain:2", want: "cuDevicePrimaryCtxRetain",
	},
	{
		name: "a rank without a communicator keeps nobody waiting",
		fail: "ncclCommInitRankScalable:2", want: "ncclCommInitRankScalable",
	},
	{
		name: "a rank without memory for messages keeps nobody waiting",
		fail: "cuMemHostRegister_v2:2", want: "cuMemHostRegister",
	},
	{
		name: "a rank without a window keeps nobody waiting",
		fail: "ncclCommWindowRegister:2", want: "ncclCommWindowRegister",
	},
}

// failing marks the processes of TestOneRankFails.
const failing = "SYMMEM_TEST_FAILING"

// TestOneRankFails looks for the reason on both ranks.
func TestOneRankFails(t *testing.T) {
	if want := os.Getenv(failing); want != "" {
		failTogether(t, want)
		return
	}
	if !soft(t) {
		t.Skip("only the software GPU fails as it is told")
	}
	for _, f := range failures {
		t.Run(f.name, func(t *testing.T) {
			c := systest.Command(t, systest.Patience, os.Args[0],
				"-test.run=^TestOneRankFails$", "-test.timeout=1m")
			c.Env = append(os.Environ(), failing+"="+f.want, "SOFTGPU_FAIL="+f.fail)
			if said, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, said)
			}
		})
	}
}

// soft reports whether the GPUs are of software.
func soft(t *testing.T) bool {
	t.Helper()
	name, err := modelName()
	if err != nil {
		t.Fatal(err)
	}
	return isSoft(name)
}

// failTogether opens both ranks and registers. One of them fails by itself, and the other, whose
// group has failed, finds its reason either in the error or on the fault lane.
func failTogether(t *testing.T, want string) {
	p, store, errs := newPair(), &drivertest.Store{}, [2]error{}
	var all sync.WaitGroup
	for r := range errs {
		all.Go(func() {
			if errs[r] = p.openOne(t, r, store, 10*time.Second); errs[r] != nil {
				errs[r] = p.reason(t, r, errs[r])
			}
		})
	}
	all.Wait()
	for r, err := range errs {
		var late *driver.TimeoutError
		if err == nil || errors.As(err, &late) || !strings.Contains(err.Error(), want) {
			t.Errorf("rank %d: got %v, want an error of %s", r, err, want)
		}
	}
}

// reason joins an error with what the ranks of an open group tell each other about it.
func (p *pairOfRanks) reason(t *testing.T, r int, err error) error {
	if p[r].group == nil {
		return err
	}
	reports, failed := p[r].group.Exchange(t.Context(), driver.LaneFault, []byte(err.Error()))
	for _, text := range reports {
		err = errors.Join(err, errors.New(string(text)))
	}
	return errors.Join(err, failed)
}

// TestAStreamWhoseWorkIsDoneHasNoFault though its group fails while a call of the group is made:
// the watcher has not come to see that the work is done.
func TestAStreamWhoseWorkIsDoneHasNoFault(t *testing.T) {
	p := openPair(t, 20*time.Second)
	both(t, func(r int) error {
		_, err := p.sum(t.Context(), r, driver.PathPlain, 1)
		return err
	})
	c, s := p[0].group.(*communicator), p[0].stream.(*stream.Stream)
	c.mu.Lock()
	c.busy.Note(s)
	c.Abort(errGivenUp)
	c.mu.Unlock()
	if err := s.Synchronize(t.Context()); err != nil {
		t.Errorf("got %v", err)
	}
	p.closeAll(t)
}

// TestWorkThatEndsBeforeAllRanksHaveComeIsAFault: its result cannot be right.
func TestWorkThatEndsBeforeAllRanksHaveComeIsAFault(t *testing.T) {
	p := openPair(t, 20*time.Second)
	c, s := p[0].group.(*communicator), p[0].stream.(*stream.Stream)
	prepared, err := prepare(c, p.call(0, driver.PathPlain))
	if err != nil {
		t.Fatal(err)
	}
	// As if it had been launched, and had ended.
	s.Mu.Lock()
	c.mu.Lock()
	c.note(s, prepared.(*plan), c.plane.Submit())
	c.mu.Unlock()
	s.Mu.Unlock()
	err = s.Synchronize(t.Context())
	if err == nil || !strings.Contains(err.Error(), "ended before") {
		t.Errorf("got %v", err)
	}
	if c.Cause() == nil {
		t.Error("the group goes on")
	}
	_ = p[1].stream.Synchronize(t.Context())
	p.closeAll(t)
}
