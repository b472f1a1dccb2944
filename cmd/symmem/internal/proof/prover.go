package proof

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

// Usage describes the flag that switches a Prover on.
const Usage = "print which kernels NCCL took, from its own log"

// Prover is what --prove of a command does: it notes the calls that are made, and says what NCCL
// took for each. States: off, where every method does nothing; on, then started, then closed. It is
// used by one goroutine.
type Prover struct {
	// On is the value of the flag.
	On       bool
	recorder *Recorder
	calls    []Call
}

// Start makes NCCL log what it chooses. It comes before symmem.Open; on the host backend the log
// stays empty.
func (p *Prover) Start() (err error) {
	if p.On {
		p.recorder, err = Start()
	}
	return err
}

// Called notes a call, once however often it is made: see Wanted.
func (p *Prover) Called(operation string, count int64, elementBytes int) {
	if c := Wanted(operation, count, elementBytes); p.On && !slices.Contains(p.calls, c) {
		p.calls = append(p.calls, c)
	}
}

// Write prints a line for each call that was noted, with a prefix, such as "# ". It is for rank 0,
// since the others have no log.
func (p *Prover) Write(w io.Writer, prefix string) error {
	if p.recorder == nil {
		return nil
	}
	if trouble := p.recorder.Trouble(); trouble != "" {
		_, err := fmt.Fprintf(w, "%swhich kernels ran is not known: %s\n", prefix, trouble)
		if err != nil {
			return fmt.Errorf("writing which kernels ran: %w", err)
		}
		return nil
	}
	log, err := p.recorder.Read()
	if err != nil {
		return err
	}
	for _, c := range p.calls {
		if _, err := fmt.Fprintf(w, "%s%v\n", prefix, log.Prove(c)); err != nil {
			return fmt.Errorf("writing which kernels ran: %w", err)
		}
	}
	return nil
}

// Close ends it, and adds its error to that of the command.
func (p *Prover) Close(err *error) {
	if p.recorder != nil {
		*err = errors.Join(*err, p.recorder.Close())
		p.recorder = nil
	}
}
