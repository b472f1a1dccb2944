package symmem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/rendezvous"
)

// CheckLevel selects how much ranks compare.
type CheckLevel int

// The check levels.
const (
	// CheckDefault is CheckEvery where that is free (the host backend), else CheckRegistration.
	CheckDefault CheckLevel = iota
	// CheckOff compares nothing. Ranks that differ compute wrong results without an error.
	CheckOff
	// CheckRegistration compares ledgers at registrations, at Check, and in the background at an
	// interval: nothing is on the hot path, and a divergence is reported even if late.
	CheckRegistration
	// CheckEvery also compares every collective's operation, count, type, path and place before
	// its result is used.
	CheckEvery
)

var checkNames = []string{"default", "off", "registration", "every"}

// String returns the level's name.
func (l CheckLevel) String() string { return nameOf(l, checkNames, "CheckLevel") }

// ParseCheckLevel reads a name as String writes it.
func ParseCheckLevel(name string) (CheckLevel, error) {
	return parseName[CheckLevel](name, checkNames, "check level")
}

// nameOf returns the name of a value whose type has one for each, from 0 on.
func nameOf[T ~int | ~uint8](value T, names []string, ofType string) string {
	if value >= 0 && int(value) < len(names) {
		return names[value]
	}
	return ofType + "(?)"
}

// parseName reads a name as nameOf writes it.
func parseName[T ~int | ~uint8](name string, names []string, what string) (T, error) {
	i := slices.Index(names, name)
	if i < 0 {
		return 0, invalid("%s %q is none of %s", what, name, strings.Join(names, ", "))
	}
	return T(i), nil
}

// Options adjust Open. The zero value takes everything from the environment.
type Options struct {
	// Rank is the rank of this process and Size their number. With Size 0 they come from the
	// variables of torchrun, Open MPI, MPICH and Slurm, in that order; without any the process is
	// alone in its world.
	Rank, Size int
	// LocalRank and LocalSize count the ranks of this machine; LocalSize 0 means Rank and Size.
	LocalRank, LocalSize int
	// Device selects one of the devices that the process sees: DeviceAuto, the zero value, or
	// DeviceNumber.
	Device DeviceChoice
	// Store is where rank 0 serves the store through which ranks find each other: "host:port",
	// which needs a Token, or "unix:@name". Empty leaves it to the environment.
	Store string
	// Token authenticates ranks to the store.
	Token string
	// Backend is "auto" or the name of a backend; empty means SYMMEM_BACKEND, else auto.
	Backend string
	// Tuning is the file of the table that chooses the path of collectives, as symmem tune writes
	// it; every rank needs the same table. Empty means SYMMEM_TUNING, else the file that TuningFile
	// names if there is one, else the built-in table, which BuiltInTuning selects.
	Tuning string
	// Path chooses the path of collectives; every rank needs the same.
	Path PathChoice
	// Deterministic makes every reduction of every group give the bits of one formula. What cannot
	// is refused: groups over several machines or without direct access on GPUs when they connect,
	// and communicators of others. Every rank needs the same.
	Deterministic Formula
	// Check selects how much ranks compare; every rank needs the same.
	Check CheckLevel
	// CheckInterval is how often CheckRegistration compares in the background. 0 means one
	// second, and a negative value never.
	CheckInterval time.Duration
	// Timeout bounds every wait for another rank that has no other deadline; 0 means 30 s.
	Timeout time.Duration
	// WarnAfter is how long this rank waits for others that live before it warns of them by name.
	// Further warnings follow every 2*WarnAfter, one at a time for each group. 0 means 30 s, and a
	// negative value never.
	WarnAfter time.Duration
	// Logger gets these warnings, and panics in functions of the user that no call returns, with
	// their stacks; nil is slog.Default(). Its handler must not call into symmem, which may hold the
	// lock of a pool or a group while it logs.
	Logger *slog.Logger
	// OnLate, if set, is called instead of the Logger, on a new goroutine each time.
	OnLate func(LateWarning)
	// OnEvent, if set, is called with everything that this rank does, on the goroutine that does it,
	// before the call that causes the event returns, unless another goroutine is delivering events
	// of the same pool then. Package event documents their order. No lock is held: OnEvent may call
	// symmem. A panic in it is logged. The Event is valid until OnEvent returns; copy it to keep it.
	OnEvent func(*event.Event)
	// UnorderedMessages is for programs that mix messages (Send and Recv) and collectives freely.
	// Else messages are numbered together with collectives: a Send belongs between the same ones of
	// its group as its Recv, and at CheckEvery each collective compares how many messages ranks
	// have sent and received before it, so that a forgotten one is found there. Every rank needs
	// the same.
	UnorderedMessages bool
	// CallSites notes the file and line of every allocation, for error messages. It costs about a
	// microsecond an allocation.
	CallSites bool
	// Scatter, if not 0, makes segments land at addresses drawn from this number and the rank, as
	// a GPU driver does: with PlaceByAddress as PoolOptions.Placement that shows what goes wrong
	// without symmem.
	Scatter uint64
	// Interrupted, if set, is asked some hundred times a second by collectives that wait for other
	// ranks on their caller's goroutine, where no context ends them. An error aborts the group, and
	// the call returns it as an ErrInterrupted. A panic counts as an error. It must be quick, and
	// not call into symmem.
	Interrupted func() error
}

// interrupting returns what a device asks in place of Options.Interrupted, or nil.
func interrupting(ask func() error) func() error {
	if ask == nil {
		return nil
	}
	return func() error {
		err := ask()
		if err == nil || errors.Is(err, ErrInterrupted) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrInterrupted, err)
	}
}

// DeviceChoice selects the device of a rank.
type DeviceChoice int

// DeviceAuto selects the device with the number of the rank on its machine.
const DeviceAuto DeviceChoice = 0

// DeviceNumber chooses a device by its number, from 0, among those that the process sees.
func DeviceNumber(n int) DeviceChoice {
	if n < 0 {
		return -1 // which Open refuses
	}
	return DeviceChoice(n) + 1
}

// String returns "auto" or the number.
func (d DeviceChoice) String() string {
	switch {
	case d == DeviceAuto:
		return "auto"
	case d < 0:
		return "DeviceChoice(?)"
	}
	return strconv.Itoa(int(d) - 1)
}

// envBackend names the backend where options do not.
const envBackend = "SYMMEM_BACKEND"

// envStepGuard, where it is 0, turns Group.Step off.
const envStepGuard = "SYMMEM_STEP_GUARD"

const (
	defaultTimeout  = 30 * time.Second
	defaultInterval = time.Second
)

// withDefaults fills in what was left out and refuses what makes no sense.
func (o Options) withDefaults() (Options, error) {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.WarnAfter == 0 {
		o.WarnAfter = defaultWarnAfter
	}
	if o.CheckInterval == 0 {
		o.CheckInterval = defaultInterval
	}
	if o.Backend == "" {
		o.Backend = cmp.Or(os.Getenv(envBackend), "auto")
	}
	if o.Tuning == "" {
		o.Tuning = os.Getenv(envTuning)
	}
	if o.Path < PathDefault || o.Path > PathDirect {
		return o, invalid("path choice %d is unknown", o.Path)
	}
	if o.Deterministic < FormulaDefault || o.Deterministic > FormulaRoundedTree {
		return o, invalid("formula of reductions %d is unknown", o.Deterministic)
	}
	var err error
	if o.Path, err = fromEnvironment(o.Path, envPath, ParsePathChoice, PathAuto); err != nil {
		return o, err
	}
	o.Deterministic, err = fromEnvironment(
		o.Deterministic, envDeterministic, ParseFormula, FormulaAny)
	if err != nil {
		return o, err
	}
	if o.Timeout < 0 {
		return o, invalid("timeout %v is negative", o.Timeout)
	}
	if o.Check < CheckDefault || o.Check > CheckEvery {
		return o, invalid("check level %d is unknown", o.Check)
	}
	if o.Device < 0 {
		return o, invalid("device %v", o.Device)
	}
	if o.Size < 0 || o.Size > 0 && (o.Rank < 0 || o.Rank >= o.Size) {
		return o, invalid("rank %d of %d", o.Rank, o.Size)
	}
	return o, nil
}

// fromEnvironment returns an option or, if it is not set, the value of a variable or the default.
func fromEnvironment[T ~int](
	option T, variable string, parse func(string) (T, error), usual T,
) (T, error) {
	if name := os.Getenv(variable); option == 0 && name != "" {
		said, err := parse(name)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", variable, err)
		}
		option = said
	}
	return cmp.Or(option, usual), nil
}

// orBackground returns the background context in place of nil.
func orBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}

// bound gives a context without a deadline the one of the options.
func (o Options) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, o.Timeout)
}

func (o Options) rendezvous() rendezvous.Options {
	return rendezvous.Options{
		Rank: o.Rank, Size: o.Size, LocalRank: o.LocalRank, LocalSize: o.LocalSize,
		Address: o.Store, Token: rendezvous.Token(o.Token),
	}
}

// resolve turns CheckDefault into a level.
func (l CheckLevel) resolve(free bool) CheckLevel {
	switch {
	case l != CheckDefault:
		return l
	case free:
		return CheckEvery
	default:
		return CheckRegistration
	}
}

// chosenBackend finds a backend by name.
func chosenBackend(name string) (driver.Backend, error) {
	if name == "auto" {
		return automatic(), nil
	}
	var names []string
	for _, b := range backends {
		if b.Name() == name {
			return b, nil
		}
		names = append(names, b.Name())
	}
	return nil, fmt.Errorf("backend %q: one of auto, %s: %w",
		name, strings.Join(names, ", "), ErrInvalid)
}

// closingTime returns how long a Close waits for work of this rank.
func closingTime(timeout time.Duration) time.Duration { return 2 * timeout }

// unended makes a TimeoutError of an error that the end of closingTime has caused.
func unended(err error, timeout time.Duration) error {
	if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(*TimeoutError)) {
		return err
	}
	doing := strings.TrimSuffix(err.Error(), ": "+context.DeadlineExceeded.Error())
	return &TimeoutError{Doing: doing, Waited: closingTime(timeout)}
}
