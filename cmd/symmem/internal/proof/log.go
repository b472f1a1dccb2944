package proof

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Log is what NCCL has said of launches so far, in order.
type Log []Choice

// Parse reads a log. A last line without an end is one that is still being written, and is left
// out.
func Parse(r io.Reader) (l Log, err error) {
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return l, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading NCCL's log: %w", err)
		}
		_, message, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " NCCL INFO ")
		if choice, ok := ParseChoice(message); ok {
			l = append(l, choice)
		}
	}
}
