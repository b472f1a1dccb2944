// Package results defines the format of result files. The tables in docs/measurements are generated
// from result files.
package results

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Table is a table of measurements. An example of a result file:
//
//	{
//	  "runs": [
//	    {"machine": "4 H200", "date": "2026-11-20"}
//	  ],
//	  "columns": ["bytes", "time, us"],
//	  "rows": [
//	    [1024, 5.20],
//	    [4096, [5.30, 5.31]]
//	  ]
//	}
//
// The same table in Markdown:
//
//	| bytes | time, us |
//	|---|---|
//	| 1024 | 5.20 |
//	| 4096 | 5.30 / 5.31 |
type Table struct {
	Runs    []Run    `json:"runs"`
	Columns []string `json:"columns"` // names with units
	Rows    [][]any  `json:"rows"`    // each cell is a number, a string, null, or a list of cells
}

// Run describes how a table was measured. Only Machine and Date are required.
type Run struct {
	Part      string `json:"part,omitempty"` // described part of the table, or "" for all
	Machine   string `json:"machine"`
	Libraries string `json:"libraries,omitempty"` // names and versions
	Date      string `json:"date"`                // such as 2026-11-20
	Commit    string `json:"commit,omitempty"`    // of symmem
	Command   string `json:"command,omitempty"`
}

// Read decodes a result file. It rejects unknown fields, and rows with missing or extra cells.
func Read(text []byte) (*Table, error) {
	t := &Table{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	decoder.UseNumber() // preserves all digits
	if err := decoder.Decode(t); err != nil {
		return nil, err
	}

	if err := t.validate(); err != nil {
		return nil, err
	}

	return t, nil
}

func (t *Table) validate() error {
	if len(t.Runs) == 0 || len(t.Columns) == 0 || len(t.Rows) == 0 {
		return errors.New("runs, columns and rows must not be empty")
	}

	for i, run := range t.Runs {
		if run.Machine == "" || run.Date == "" {
			return fmt.Errorf("run %d has no machine or no date", i)
		}
	}

	for i, row := range t.Rows {
		if len(row) != len(t.Columns) {
			return fmt.Errorf("row %d has %d cells, but the table has %d columns",
				i, len(row), len(t.Columns))
		}

		for _, cell := range row {
			_, err := formatCell(cell)
			if err != nil {
				return fmt.Errorf("row %d: %w", i, err)
			}
		}
	}

	return nil
}

// Encode encodes a result file as JSON with one line per row, for readable diffs.
func (t *Table) Encode() ([]byte, error) {
	if err := t.validate(); err != nil {
		return nil, err
	}

	runs, err := encodeLine(t.Runs)
	if err != nil {
		return nil, err
	}

	const linePrefix, indent = "  ", "  "
	var indentedRuns bytes.Buffer
	if err := json.Indent(&indentedRuns, runs, linePrefix, indent); err != nil {
		return nil, err
	}

	columns, err := encodeLine(t.Columns)
	if err != nil {
		return nil, err
	}

	rows := make([]string, len(t.Rows))
	for i, row := range t.Rows {
		line, err := encodeLine(row)
		if err != nil {
			return nil, err
		}

		rows[i] = "    " + string(line)
	}

	const format = "{\n  \"runs\": %s,\n  \"columns\": %s,\n  \"rows\": [\n%s\n  ]\n}\n"
	text := fmt.Appendf(nil, format, indentedRuns.Bytes(), columns, strings.Join(rows, ",\n"))
	return text, nil
}

// encodeLine returns value as JSON on one line. Unlike json.Marshal, it does not escape <, > and &.
func encodeLine(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value) // adds a newline
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// Markdown returns the table as Markdown.
func (t *Table) Markdown() (string, error) {
	var out strings.Builder
	writeMarkdownRow(&out, t.Columns)
	out.WriteString("|" + strings.Repeat("---|", len(t.Columns)) + "\n")
	for _, row := range t.Rows {
		texts := make([]string, len(row))
		for i, cell := range row {
			text, err := formatCell(cell)
			if err != nil {
				return "", err
			}

			texts[i] = text
		}

		writeMarkdownRow(&out, texts)
	}

	return out.String(), nil
}

func writeMarkdownRow(out *strings.Builder, cells []string) {
	out.WriteString("|")
	for _, cell := range cells {
		if cell != "" {
			escaped := strings.ReplaceAll(cell, "|", `\|`)
			out.WriteString(" " + escaped)
		}

		out.WriteString(" |")
	}

	out.WriteString("\n")
}

// formatCell formats a cell for Markdown. It rejects types that Rows must not contain.
func formatCell(cell any) (string, error) {
	switch cell := cell.(type) {
	case nil:
		return "", nil
	case string:
		return cell, nil
	case json.Number:
		return cell.String(), nil
	case float64:
		const shortestExact = -1
		return strconv.FormatFloat(cell, 'f', shortestExact, 64), nil
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
