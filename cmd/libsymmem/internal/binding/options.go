package binding

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"symmem"
)

// Options holds the options of a world, which symmem.h describes. Zero values stand for defaults.
// The JSON object of rank 2 of 4 is, for example:
//
//	{"rank": 2, "size": 4, "timeout_ms": 30000, "pool": {"capacity": 1073741824}}
type Options struct {
	Rank            int               `json:"rank"`
	Size            int               `json:"size"`
	LocalRank       int               `json:"local_rank"`
	LocalSize       int               `json:"local_size"`
	Device          *int              `json:"device"`
	Store           string            `json:"store"`
	Token           string            `json:"token"`
	Backend         string            `json:"backend"`
	Tuning          string            `json:"tuning"`
	Trace           string            `json:"trace"`
	Path            string            `json:"path"`
	Deterministic   string            `json:"deterministic"`
	Check           string            `json:"check"`
	CheckIntervalMS int64             `json:"check_interval_ms"`
	TimeoutMS       int64             `json:"timeout_ms"`
	WarnAfterMS     int64             `json:"warn_after_ms"`
	CallSites       *bool             `json:"callsites"`
	OrderedMessages bool              `json:"ordered_messages"`
	Scatter         uint64            `json:"scatter"`
	GoMaxProcs      int               `json:"gomaxprocs"`
	Pool            PoolOptions       `json:"pool"`
	Environment     map[string]string `json:"environment"`
}

// PoolOptions holds the options of one pool.
type PoolOptions struct {
	Capacity     int64  `json:"capacity"`
	FirstSegment int64  `json:"first_segment"`
	Placement    string `json:"placement"`
}

// decode decodes a JSON object into the struct to which options points. It rejects unknown fields.
// An empty text has no effect.
func decode(text []byte, options any) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}

	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(options); err != nil {
		return fmt.Errorf("reading the options: %w: %w", err, symmem.ErrInvalid)
	}

	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("reading the options: text after the JSON object: %w", symmem.ErrInvalid)
	}

	return nil
}

// runtimeOptions checks the options and converts them for symmem.Open.
func (o *Options) runtimeOptions() (symmem.Options, error) {
	out := symmem.Options{
		Rank: o.Rank, Size: o.Size, LocalRank: o.LocalRank, LocalSize: o.LocalSize,
		Store: o.Store, Token: o.Token, Backend: o.Backend, Tuning: o.Tuning, Trace: o.Trace,
		Scatter: o.Scatter, UnorderedMessages: !o.OrderedMessages,
	}
	var err error
	if out.Timeout, err = timeoutOf(o.TimeoutMS); err != nil {
		return out, err
	}

	out.CheckInterval, err = intervalOf("check_interval_ms", o.CheckIntervalMS)
	if err != nil {
		return out, err
	}

	if out.WarnAfter, err = intervalOf("warn_after_ms", o.WarnAfterMS); err != nil {
		return out, err
	}

	if o.Device != nil {
		if *o.Device < 0 {
			return out, fmt.Errorf("device is %d; want at least 0: %w", *o.Device, symmem.ErrInvalid)
		}

		out.Device = symmem.DeviceNumber(*o.Device)
	}

	err = o.parseEnums(&out)
	return out, err
}

func (o *Options) parseEnums(out *symmem.Options) (err error) {
	if o.Path != "" {
		if out.Path, err = symmem.ParsePathChoice(o.Path); err != nil {
			return err
		}
	}

	if o.Deterministic != "" {
		if out.Deterministic, err = symmem.ParseFormula(o.Deterministic); err != nil {
			return err
		}
	}

	if o.Check != "" {
		if out.Check, err = symmem.ParseCheckLevel(o.Check); err != nil {
			return err
		}
	}

	return nil
}

// maxMilliseconds is one day. A larger value is probably in another unit, such as nanoseconds.
const maxMilliseconds = 24 * 60 * 60 * 1000

// timeoutOf converts an option or argument timeout_ms.
func timeoutOf(timeoutMS int64) (time.Duration, error) {
	if timeoutMS < 0 || timeoutMS > maxMilliseconds {
		return 0, fmt.Errorf("timeout_ms is %d; want 0 to %d: %w", timeoutMS, maxMilliseconds,
			symmem.ErrInvalid)
	}

	return time.Duration(timeoutMS) * time.Millisecond, nil
}

// intervalOf converts an option whose negative values stand for never.
func intervalOf(name string, milliseconds int64) (time.Duration, error) {
	if milliseconds < -maxMilliseconds || milliseconds > maxMilliseconds {
		return 0, fmt.Errorf("%s is %d; want at most %d, or a negative value of at least %d: %w", name,
			milliseconds, maxMilliseconds, -maxMilliseconds, symmem.ErrInvalid)
	}

	return time.Duration(milliseconds) * time.Millisecond, nil
}

// poolOptions converts the options of a pool. The ranks of domain share the pool.
func (o PoolOptions) poolOptions(domain *symmem.Group) (symmem.PoolOptions, error) {
	out := symmem.PoolOptions{
		Domain: domain, Capacity: o.Capacity, FirstSegment: o.FirstSegment,
	}
	if o.Placement == "" {
		return out, nil
	}

	var err error
	out.Placement, err = symmem.ParsePlacement(o.Placement)
	return out, err
}

// shouldRecordCallSites reports whether calls record their source lines. The default is the
// environment variable SYMMEM_CALLSITES: a boolean, or the number of lines per call.
func (o *Options) shouldRecordCallSites() bool {
	if o.CallSites != nil {
		return *o.CallSites
	}

	text := os.Getenv("SYMMEM_CALLSITES")
	if lines, err := strconv.Atoi(text); err == nil {
		return lines > 0
	}

	isEnabled, err := strconv.ParseBool(text)
	return err == nil && isEnabled
}

// defaultMaxProcs is small, because many ranks may share a machine with the caller's threads.
const defaultMaxProcs = 2

// setMaxProcs sets GOMAXPROCS to the option, SYMMEM_GOMAXPROCS or defaultMaxProcs.
func (o *Options) setMaxProcs() {
	procs := o.GoMaxProcs
	if procs <= 0 {
		procs, _ = strconv.Atoi(os.Getenv("SYMMEM_GOMAXPROCS")) // 0 if it is not a number
	}

	if procs <= 0 {
		procs = min(defaultMaxProcs, runtime.NumCPU())
	}

	runtime.GOMAXPROCS(procs)
}

// setEnvironment adds the variables that the process has set since Go copied the environment to
// this copy.
func (o *Options) setEnvironment() error {
	for name, value := range o.Environment {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("setting environment variable %q: %w: %w", name, err, symmem.ErrInvalid)
		}
	}

	return nil
}
