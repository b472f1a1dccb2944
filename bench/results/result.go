// Package results defines the format of result files: a table of measurements and its origin. All
// tables in docs/measurements are generated from result files.
package results

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Result holds a table of measurements and the runs that produced it.
type Result struct {
	Runs    []Run    `json:"runs"`
	Columns []string `json:"columns"` // names with units
	// Rows contains a cell for each column. A cell is a number, a string, null, or a list of these,
	// which Markdown joins with " / ".
	Rows [][]any `json:"rows"`
}

// Run describes a run. Only Machine and Date are required.
type Run struct {
	Part      string `json:"part,omitempty"` // of the table, or ""
	Machine   string `json:"machine"`
	Libraries string `json:"libraries,omitempty"` // with versions
	Date      string `json:"date"`                // such as 2026-11-20
	Commit    string `json:"commit,omitempty"`
	Command   string `json:"command,omitempty"`
}

// Read decodes a result file. It rejects unknown fields and rows with missing or extra cells.
func Read(text []byte) (*Result, error) {
	r := &Result{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	d.UseNumber() // preserve all digits
	if err := d.Decode(r); err != nil {
		return nil, err
	}
	return r, r.validate()
}

func (r *Result) validate() error {
	if len(r.Runs) == 0 || len(r.Columns) == 0 || len(r.Rows) == 0 {
		return errors.New("runs, columns and rows must not be empty")
	}
	for i, run := range r.Runs {
		if run.Machine == "" || run.Date == "" {
			return fmt.Errorf("run %d has no machine or no date", i)
		}
	}
	for i, row := range r.Rows {
		if len(row) != len(r.Columns) {
			return fmt.Errorf("row %d has %d cells, but the table has %d columns",
				i, len(row), len(r.Columns))
		}
		for _, cell := range row {
			if _, err := formatCell(cell); err != nil {
				return fmt.Errorf("row %d: %w", i, err)
			}
		}
	}
	return nil
}

// Encode encodes a result file, one line for each row.
func (r *Result) Encode() ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	runs, err := encodeLine(r.Runs)
	if err != nil {
		return nil, err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, runs, "  ", "  "); err != nil {
		return nil, err
	}
	columns, err := encodeLine(r.Columns)
	if err != nil {
		return nil, err
	}
	rows := make([]string, len(r.Rows))
	for i, row := range r.Rows {
		line, err := encodeLine(row)
		if err != nil {
			return nil, err
		}
		rows[i] = "    " + string(line)
	}
	return fmt.Appendf(nil, "{\n  \"runs\": %s,\n  \"columns\": %s,\n  \"rows\": [\n%s\n  ]\n}\n",
		indented.Bytes(), columns, strings.Join(rows, ",\n")), nil
}

// encodeLine does not escape <, > and &.
func encodeLine(value any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// Markdown returns the table as Markdown.
func (r *Result) Markdown() (string, error) {
	var out strings.Builder
	writeLine := func(cells []string) {
		out.WriteString("|")
		for _, cell := range cells {
			if cell != "" {
				out.WriteString(" " + strings.ReplaceAll(cell, "|", `\|`))
			}
			out.WriteString(" |")
		}
		out.WriteString("\n")
	}
	writeLine(r.Columns)
	out.WriteString("|" + strings.Repeat("---|", len(r.Columns)) + "\n")
	for _, row := range r.Rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			text, err := formatCell(cell)
			if err != nil {
				return "", err
			}
			cells[i] = text
		}
		writeLine(cells)
	}
	return out.String(), nil
}

func formatCell(cell any) (string, error) {
	switch cell := cell.(type) {
	case nil:
		return "", nil
	case string:
		return cell, nil
	case json.Number:
		return cell.String(), nil
	case float64:
		return strconv.FormatFloat(cell, 'f', -1, 64), nil
	case []any:
		parts := make([]string, len(cell))
		for i, part := range cell {
			text, err := formatCell(part)
			if err != nil {
				return "", err
			}
			parts[i] = text
		}
		return strings.Join(parts, " / "), nil
	}
	return "", fmt.Errorf("a cell must be a number, a string, null or a list of these, not %T", cell)
}
