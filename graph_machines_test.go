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

// firstCallVariable makes the test binary run as one rank, in runFirstCallProcess.
const firstCallVariable = "SYMMEM_TEST_FIRST"

// A graph can capture the first call of a group, in which NCCL connects the ranks and allocates
// memory. Ranks on this machine with different values of NCCL_HOSTID count as ranks on different
// machines.
func TestFirstCallsAreCapturedBetweenMachines(t *testing.T) {
	skipOnHost(t, "the host backend has groups on one machine only")
	const machinesVariable, defaultMachines = "MACHINES", "2"
	machines, err := strconv.Atoi(cmp.Or(os.Getenv(machinesVariable), defaultMachines))
	if err != nil {
		t.Fatalf("the variable %s: %v", machinesVariable, err)
	}

	const maxRanks = 4
	ranks := min(maxRanks, availableRanks(t))
	requireRanks(t, ranks)
	store := "unix:@symmem-test-" + rand.Text()
	var processes []*exec.Cmd
	for number := range ranks {
		machine := number * machines / ranks // 0, 0, 1, 1 for 4 ranks on 2 machines
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
	c.Stdout = &strings.Builder{} // receives the error of the rank
	c.Stderr = os.Stderr
	return c
}

func runFirstCallProcess() (exitStatus int) {
	// firstCallCommand has formatted these integers.
	number, _ := strconv.Atoi(os.Getenv(rankVariable))
	size, _ := strconv.Atoi(os.Getenv(sizeVariable))
	ctx := context.Background()
	rt, err := symmem.Open(ctx, withBackend(symmem.Options{
		Rank: number, Size: size, Store: os.Getenv(storeVariable), Path: symmem.PathPlain,
		Timeout: time.Minute,
	}))
	if err == nil {
		captureErr := captureAllOperations(ctx, rt)
		closeErr := rt.Close()
		err = errors.Join(captureErr, closeErr)
	}

	if err != nil {
		fmt.Println(err)
		return 1
	}

	return 0
}

func captureAllOperations(ctx context.Context, rt *symmem.Runtime) error {
	pool, err := rt.NewPool(symmem.PoolOptions{})
	if err != nil {
		return err
	}

	const elementBytes = 4
	const countPerRank = 1 << 16 // arbitrary
	gatherBytes := int64(elementBytes * countPerRank * rt.Size())
	send, err := pool.Alloc(gatherBytes)
	if err != nil {
		return err
	}

	recv, err := pool.Alloc(gatherBytes)
	if err != nil {
		return errors.Join(err, send.Free())
	}

	var errs []error
	for _, operation := range []symmem.Operation{
		symmem.OpAllReduce, symmem.OpAllGather, symmem.OpReduceScatter, symmem.OpBroadcast,
		symmem.OpReduce, symmem.OpAllToAll,
	} {
		call := symmem.Call{
			Operation: operation, Type: symmem.Float32, Count: countPerRank, Send: send.Memory(),
			Recv: recv.Memory(),
		}
		if err := captureInNewGroup(ctx, rt, call); err != nil {
			errs = append(errs, fmt.Errorf("%v: %w", operation, err))
		}
	}

	errs = append(errs, send.Free(), recv.Free())
	return errors.Join(errs...)
}

func captureInNewGroup(ctx context.Context, rt *symmem.Runtime, call symmem.Call) error {
	const sameColor = 0 // for one group of all ranks
	g, err := rt.World().Split(ctx, sameColor, rt.Rank())
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

func replayOnce(ctx context.Context, graph *symmem.Graph, s *symmem.Stream) error {
	launchErr := graph.Launch(s)
	syncErr := s.Synchronize(ctx)
	closeErr := graph.Close()
	return errors.Join(launchErr, syncErr, closeErr)
}
