package symmem_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"symmem"
	"symmem/internal/sys/systest"
)

// The test starts up to four ranks, each as a process of this program. All run on one machine, but
// the variable NCCL_HOSTID makes NCCL believe that ranks 0 and 1 run on machine 0, and ranks 2 and
// 3 on machine 1. Each rank creates a new group and captures a call in it, and then replays the
// call.

// firstCallVariable marks a process as a rank of the test. The rank also needs its number in
// rankVariable, the number of ranks in sizeVariable and, in storeVariable, the address where the
// ranks find each other.
const firstCallVariable = "SYMMEM_TEST_FIRST"

// TestFirstCallsAreCapturedBetweenMachines captures the first call in a new group, for each
// operation. During this call, NCCL connects ranks and allocates memory, which must not invalidate
// the capture. The variable MACHINES sets the number of machines, which is two by default.
func TestFirstCallsAreCapturedBetweenMachines(t *testing.T) {
	if os.Getenv(backendVariable) != "nccl" {
		t.Skip(fmt.Errorf("the host backend has groups on one machine only: %w", symmem.ErrUnsupported))
	}

	store := "unix:@symmem-test-" + rand.Text()
	ranks := min(4, availableRanks(t))
	machines, err := strconv.Atoi(cmp.Or(os.Getenv("MACHINES"), "2"))
	if err != nil {
		t.Fatalf("the variable MACHINES: %v", err)
	}

	requireRanks(t, ranks) // skips the test if there are too few devices
	var processes []*exec.Cmd
	for number := range ranks {
		machine := machines * number / ranks // for 4 ranks and 2 machines: 0, 0, 1, 1
		c := firstCallCommand(t, store, number, ranks, machine)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}

		processes = append(processes, c)
	}

	for number, c := range processes {
		if err := c.Wait(); err != nil {
			t.Errorf("rank %d: %v\n%s", number, err, c.Stdout)
		}
	}
}

// firstCallCommand returns the command for a rank, which prints its errors to the command's Stdout.
func firstCallCommand(t *testing.T, store string, number, ranks, machine int) *exec.Cmd {
	t.Helper()
	c := systest.Command(t, systest.Patience, os.Args[0])
	c.Env = append(os.Environ(),
		firstCallVariable+"=1",
		storeVariable+"="+store,
		rankVariable+"="+strconv.Itoa(number),
		sizeVariable+"="+strconv.Itoa(ranks),
		fmt.Sprintf("NCCL_HOSTID=machine-%d", machine),
		"NCCL_NET=Socket",
	)
	c.Stdout = &strings.Builder{}
	c.Stderr = os.Stderr
	return c
}

// runFirstCallProcess runs this process as a rank of the test and returns its exit status.
func runFirstCallProcess() int {
	number, _ := strconv.Atoi(os.Getenv(rankVariable)) // the test has set both to integers
	size, _ := strconv.Atoi(os.Getenv(sizeVariable))
	ctx := context.Background()
	rt, err := symmem.Open(ctx, withBackend(symmem.Options{
		Rank: number, Size: size, Store: os.Getenv(storeVariable), Path: symmem.PathPlain,
		Timeout: time.Minute,
	}))
	if err == nil {
		captureErr := captureFirstCalls(ctx, rt)
		closeErr := rt.Close()
		err = errors.Join(captureErr, closeErr)
	}

	if err != nil {
		fmt.Println(err)
		return 1
	}

	return 0
}

// captureFirstCalls calls captureFirstCall for each operation and returns all errors.
func captureFirstCalls(ctx context.Context, rt *symmem.Runtime) error {
	pool, err := rt.NewPool(symmem.PoolOptions{})
	if err != nil {
		return err
	}

	const count = 1 << 16                 // float32 elements per rank
	bytes := int64(4 * count * rt.Size()) // of all ranks, which is enough for each operation
	send, err := pool.Alloc(bytes)
	if err != nil {
		return err
	}

	recv, err := pool.Alloc(bytes)
	if err != nil {
		return errors.Join(err, send.Free())
	}

	var errs []error
	for _, operation := range []symmem.Operation{
		symmem.OpAllReduce, symmem.OpAllGather, symmem.OpReduceScatter, symmem.OpBroadcast,
		symmem.OpReduce, symmem.OpAllToAll,
	} {
		call := symmem.Call{
			Operation: operation, Type: symmem.Float32, Count: count, Send: send.Memory(),
			Recv: recv.Memory(),
		}
		if err := captureFirstCall(ctx, rt, call); err != nil {
			errs = append(errs, fmt.Errorf("%v: %w", operation, err))
		}
	}

	errs = append(errs, send.Free())
	errs = append(errs, recv.Free())
	return errors.Join(errs...)
}

// captureFirstCall captures a call as the first call in a new group, and replays it.
func captureFirstCall(ctx context.Context, rt *symmem.Runtime, call symmem.Call) error {
	const color = 0
	g, err := rt.World().Split(ctx, color, rt.Rank())
	if err != nil {
		return err
	}

	s := rt.DefaultStream()
	if err := s.BeginCapture(); err != nil {
		return errors.Join(err, g.Close())
	}

	callErr := rt.Interop().Do(ctx, g, call, s)
	graph, endErr := s.EndCapture()
	err = errors.Join(callErr, endErr)
	if err == nil {
		err = replayOnce(ctx, graph, s)
	}

	closeErr := g.Close()
	return errors.Join(err, closeErr)
}

// replayOnce replays a graph, waits for it and closes it.
func replayOnce(ctx context.Context, graph *symmem.Graph, s *symmem.Stream) error {
	launchErr := graph.Launch(s)
	syncErr := s.Synchronize(ctx)
	closeErr := graph.Close()
	return errors.Join(launchErr, syncErr, closeErr)
}
