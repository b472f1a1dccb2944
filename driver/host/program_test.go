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

// A rank process is this test binary, started by process_test.go. It runs a program, such as a
// series of collectives with the other ranks, until an error ends it. These are its environment
// variables.
const (
	programVariable = "SYMMEM_HOST_TEST_PROGRAM" // a key of programs
	rankVariable    = "SYMMEM_HOST_TEST_RANK"    // the rank and the number of ranks, such as "1 3"
	storeVariable   = "SYMMEM_HOST_TEST_STORE"   // address of the store
	timeoutVariable = "SYMMEM_HOST_TEST_TIMEOUT" // limits waits for other ranks, such as "60s"
)

// output is a line that a rank process writes to standard output for its test, in JSON.
type output struct {
	// Event is "open" when the device is open, "running" once the program has run roundsToRun
	// rounds, and "outcome" at the end. The other fields except Address describe the outcome.
	Event string
	// Address is the address of the hand-off socket, if Event is "open".
	Address string
	// Kind is the kind of error that ended the program. It is "start" or "close" if the rank could
	// not start or close. Otherwise, it is a result of controltest.KindOf, such as "lost".
	Kind string
	// Ranks lists the ranks that the error names.
	Ranks []int
	Text  string // the error's text
	// Present holds, for each rank, whether it took part in the final exchange on the fault lane.
	Present []bool
}

// write writes the output as a line to standard output.
func (o output) write() {
	line, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}

	fmt.Println(string(line))
}

// rankProcess holds the state of a rank process.
type rankProcess struct {
	rank, size int // size is the number of ranks
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

// roundsToRun is the number of rounds after which a rank reports that it is running. By then,
// collectives and messages have used all of their paths and sizes.
const roundsToRun = 20

// runRank runs the program of a rank process and returns the exit status.
func runRank() int {
	// The test holds the other end of standard input, so this process exits when the test does.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3) // a status that no other end of the process has
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

// open opens the device, reports it, and joins the group.
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

// join connects the group of all ranks and registers a segment for the programs.
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

	arena, err := a.device.NewArena(segmentBytes)
	if err != nil {
		return err
	}

	if a.segment, err = arena.Map(0, segmentBytes); err != nil {
		return err
	}

	a.window, err = a.group.Register(ctx, driver.SegmentKey{Pool: 1}, a.segment)
	return err
}

// The segment has room for the largest inputs and, in its second half, for the largest outputs of
// runCollective.
const segmentBytes = 8 << 20

// runCollective runs an AllReduce. Successive rounds use different paths, and sizes that need one
// step or many.
func (a *rankProcess) runCollective(round int) error {
	paths := []driver.Path{driver.PathPlain, driver.PathWindow}
	counts := []int64{4, 2000, 500_000}
	send := a.segment.Address()
	return a.launch(driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32,
		Path: paths[round%len(paths)], Count: counts[round%len(counts)],
		Send: send, Recv: send + segmentBytes/2,
		SendWindow: a.window, RecvWindow: a.window,
	})
}

// launch runs a call and waits for it.
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

// register registers the segment under a new key, in addition to a.window, and deregisters it.
func (a *rankProcess) register(round int) error {
	key := driver.SegmentKey{Pool: 2, Ordinal: uint32(round)}
	w, err := a.group.Register(context.Background(), key, a.segment)
	if err != nil {
		return err
	}

	return w.Deregister()
}

// exchange exchanges payloads of different sizes, from 0 to 39,000 bytes.
func (a *rankProcess) exchange(round int) error {
	payload := make([]byte, 3000*round%40_000)
	_, err := a.group.Exchange(context.Background(), driver.LaneControl, payload)
	return err
}

// passMessage sends a message around the ring of ranks: each receives it from the previous rank and
// sends it to the next. Rank 0 sends first; the others receive first.
func (a *rankProcess) passMessage(round int) error {
	counts := []int64{0, 50_000, 100_000}
	message := driver.Call{
		Count: counts[round%len(counts)], Send: a.segment.Address(), Recv: a.segment.Address(),
		Digest: 1, // any number, the same on all ranks
	}
	send, recv := message, message
	send.Operation, send.Root = driver.Send, (a.rank+1)%a.size
	recv.Operation, recv.Root = driver.Recv, (a.rank+a.size-1)%a.size
	steps := []driver.Call{recv, send}
	if a.rank == 0 {
		steps = []driver.Call{send, recv}
	}

	for _, call := range steps {
		if err := a.launch(call); err != nil {
			return err
		}
	}

	return nil
}

// finish exchanges with the other ranks on the lane for causes of failures, closes the device, and
// writes programErr, the error that ended the program, as the outcome.
func (a *rankProcess) finish(programErr error) {
	outcome := output{Event: "outcome", Text: programErr.Error()}
	outcome.Kind, outcome.Ranks = controltest.KindOf(programErr)
	ctx, cancel := context.WithTimeout(context.Background(), a.device.cfg.Timeout)
	defer cancel()
	const report = "here" // the payload of each rank that takes part; other payloads are nil
	reports, err := a.group.Exchange(ctx, driver.LaneFault, []byte(report))
	if err != nil {
		outcome.Text += "; " + err.Error()
	}

	for _, r := range reports {
		outcome.Present = append(outcome.Present, string(r) == report)
	}

	groupErr := a.group.Close()
	deviceErr := a.device.Close()
	if err := errors.Join(groupErr, deviceErr); err != nil {
		outcome.Kind, outcome.Text = "close", err.Error()
	}

	outcome.write()
}
