package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"symmem/driver"
	"symmem/internal/control/controltest"
	"symmem/internal/rendezvous"
)

// Environment variables of rank processes.
const (
	programVariable = "SYMMEM_HOST_TEST_PROGRAM"
	rankVariable    = "SYMMEM_HOST_TEST_RANK"
	storeVariable   = "SYMMEM_HOST_TEST_STORE"
	timeoutVariable = "SYMMEM_HOST_TEST_TIMEOUT"
)

// output is a line that a rank process writes to standard output for its test, in JSON.
type output struct {
	// Event is "open" when the device is open, "running" once the program has run roundsToRun
	// rounds, and "outcome" at the end.
	Event string
	// Address is the address of the hand-off socket, if Event is "open".
	Address string
	// Kind is the kind of error that ended the program: "start", "close", or a result of
	// controltest.KindOf.
	Kind string
	// Ranks lists the ranks that the error names.
	Ranks []int
	Text  string // the error's text
	// Present holds, for each rank, whether it took part in the final exchange on the fault lane.
	Present []bool
}

func (o output) write() {
	line, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

type rankProcess struct {
	rank, size int
	device     *Device
	group      driver.Communicator
	stream     driver.Stream
	segment    driver.Segment
	window     driver.Window
}

// programs maps the name of each program to a function that runs one round of it. Ranks repeat
// rounds until one returns an error.
var programs = map[string]func(a *rankProcess, round int) error{
	"collectives":   (*rankProcess).runCollective,
	"registrations": (*rankProcess).register,
	"exchanges":     (*rankProcess).exchange,
	"messages":      (*rankProcess).passMessage,
}

// roundsToRun is the number of rounds after which a rank reports that it is running.
const roundsToRun = 20

// runRank runs the program of a rank process and returns the exit status.
func runRank() int {
	// The test holds the other end of standard input, so this process exits when the test does.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	a := &rankProcess{}
	if err := a.open(); err != nil {
		output{Event: "outcome", Kind: "start", Text: err.Error()}.write()
		return 1
	}
	program := programs[os.Getenv(programVariable)]
	for round := 0; ; round++ {
		if round == roundsToRun {
			output{Event: "running"}.write()
		}
		if err := program(a, round); err != nil {
			a.finish(err)
			return 0
		}
	}
}

func (a *rankProcess) open() error {
	if _, err := fmt.Sscan(os.Getenv(rankVariable), &a.rank, &a.size); err != nil {
		return err
	}
	timeout, err := time.ParseDuration(os.Getenv(timeoutVariable))
	if err != nil {
		return err
	}
	ctx := context.Background()
	store, err := rendezvous.Dial(ctx, rendezvous.Endpoint{Address: os.Getenv(storeVariable)})
	if err != nil {
		return err
	}
	d, err := Backend{}.Open(ctx, driver.Config{
		Rank: a.rank, Size: a.size, Store: store, Timeout: timeout,
	})
	if err != nil {
		return err
	}
	a.device = d.(*Device)
	output{Event: "open", Address: a.device.machine.Address()}.write()
	return a.join()
}

func (a *rankProcess) join() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), processTimeout)
	defer cancel()
	ranks := make([]int, a.size)
	for i := range ranks {
		ranks[i] = i
	}
	if a.group, err = a.device.Connect(ctx, driver.GroupConfig{
		ID: "world", Ranks: ranks, Rank: a.rank, Check: true,
	}); err != nil {
		return err
	}
	if a.stream, err = a.device.NewStream(); err != nil {
		return err
	}
	arena, err := a.device.NewArena(16 << 20)
	if err != nil {
		return err
	}
	if a.segment, err = arena.Map(0, 8<<20); err != nil {
		return err
	}
	a.window, err = a.group.Register(ctx, driver.SegmentKey{Pool: 1}, a.segment)
	return err
}

// runCollective runs an AllReduce. Successive rounds use different paths, and sizes that need one
// step or many.
func (a *rankProcess) runCollective(round int) error {
	return a.launch(driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, Path: driver.Path(round % 2),
		Count: []int64{4, 2000, 500_000}[round%3], Send: a.segment.Address(),
		Recv: a.segment.Address() + 4<<20, SendWindow: a.window, RecvWindow: a.window,
	})
}

func (a *rankProcess) launch(call driver.Call) error {
	plan, err := driver.Prepare(a.group, call)
	if err != nil {
		return err
	}
	if err := a.group.Launch(a.stream, plan); err != nil {
		return err
	}
	return a.stream.Synchronize(context.Background())
}

func (a *rankProcess) register(round int) error {
	key := driver.SegmentKey{Pool: 2, Ordinal: uint32(round)}
	w, err := a.group.Register(context.Background(), key, a.segment)
	if err != nil {
		return err
	}
	return w.Deregister()
}

func (a *rankProcess) exchange(round int) error {
	payload := make([]byte, 3000*round%40_000)
	_, err := a.group.Exchange(context.Background(), driver.LaneControl, payload)
	return err
}

// passMessage sends a message around the ring. Rank 0 sends first; the others receive first.
func (a *rankProcess) passMessage(round int) error {
	steps := []driver.Operation{driver.Recv, driver.Send}
	if a.rank == 0 {
		steps = []driver.Operation{driver.Send, driver.Recv}
	}
	for _, operation := range steps {
		peer := (a.rank + 1) % a.size
		if operation == driver.Recv {
			peer = (a.rank + a.size - 1) % a.size
		}
		call := driver.Call{
			Operation: operation, Root: peer, Count: int64(50_000 * (round % 3)), Digest: 1,
			Send: a.segment.Address(), Recv: a.segment.Address(),
		}
		if err := a.launch(call); err != nil {
			return err
		}
	}
	return nil
}

// finish exchanges with the other ranks on the fault lane, closes the device, and writes err as the
// outcome.
func (a *rankProcess) finish(err error) {
	outcome := output{Event: "outcome", Text: err.Error()}
	outcome.Kind, outcome.Ranks = controltest.KindOf(err)
	ctx, cancel := context.WithTimeout(context.Background(), a.device.cfg.Timeout)
	defer cancel()
	const report = "here"
	reports, err := a.group.Exchange(ctx, driver.LaneFault, []byte(report))
	if err != nil {
		outcome.Text += "; " + err.Error()
	}
	for _, r := range reports {
		outcome.Present = append(outcome.Present, string(r) == report)
	}
	if err := errors.Join(a.group.Close(), a.device.Close()); err != nil {
		outcome.Kind, outcome.Text = "close", err.Error()
	}
	outcome.write()
}
