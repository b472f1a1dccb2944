package page

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"strings"
)

// dataPrefix ends with the version of the format.
const dataPrefix = "SYMPAGE\x01"

// The script and style of the page, built from web/src.
var (
	//go:embed bundle/page.js
	script string
	//go:embed bundle/page.css
	style string
)

// columnLocation is the offset from the end of the header and the length of a column, in bytes.
type columnLocation [2]int

// pageHeader is the JSON form of a Page. Its field Sequences shadows Page.Sequences.
type pageHeader struct {
	*Page
	Sequences  []sequenceHeader `json:"sequences"`
	StackCount int              `json:"stackCount"`
	Stacks     columnLocation   `json:"stacks"`
}

// sequenceHeader is the JSON form of a Sequence. Its field Tracks shadows Sequence.Tracks.
type sequenceHeader struct {
	Sequence
	Tracks []trackHeader `json:"tracks"`
}

// trackHeader is the JSON form of a Track.
type trackHeader struct {
	Rank     int                       `json:"rank"`
	First    int                       `json:"first"`
	Events   int                       `json:"events"`
	Segments []Segment                 `json:"segments"`
	Columns  map[string]columnLocation `json:"columns"` // by name
}

// WriteData writes only the data of the page, uncompressed, in the format of the package comment.
func (p *Page) WriteData(w io.Writer) error {
	header, columns, err := p.encode()
	if err != nil {
		return err
	}

	prefixAndLength := binary.LittleEndian.AppendUint32([]byte(dataPrefix), uint32(len(header)))
	parts := append([][]byte{prefixAndLength, header}, columns...)
	for _, part := range parts {
		if _, err := w.Write(part); err != nil {
			return fmt.Errorf("writing the data of a page: %w", err)
		}
	}

	return nil
}

// encode returns the header and the columns of the data.
func (p *Page) encode() (header []byte, columns [][]byte, err error) {
	var list columnList
	h := pageHeader{Page: p, StackCount: p.stackCount, Stacks: list.add(p.stacks)}
	for _, s := range p.Sequences {
		tracks := []trackHeader{} // not nil, so that the JSON is [], not null
		for _, t := range s.Tracks {
			tracks = append(tracks, list.addTrack(t))
		}

		h.Sequences = append(h.Sequences, sequenceHeader{Sequence: s, Tracks: tracks})
	}

	header, err = json.Marshal(h)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the header of a page: %w", err)
	}

	return header, list.columns, nil
}

type columnList struct {
	columns [][]byte
	bytes   int // in all columns
}

func (l *columnList) addTrack(t *Track) trackHeader {
	locations := map[string]columnLocation{}
	for i, column := range t.columns {
		locations[columnNames[i]] = l.add(column)
	}

	return trackHeader{
		Rank:     t.Rank,
		First:    t.First,
		Events:   t.count,
		Segments: t.Segments,
		Columns:  locations,
	}
}

func (l *columnList) add(column []byte) columnLocation {
	location := columnLocation{l.bytes, len(column)}
	l.bytes += len(column)
	l.columns = append(l.columns, column)
	return location
}

// WriteHTML writes the page and its data as one HTML file. Browsers without JavaScript show
// plainText.
func (p *Page) WriteHTML(w io.Writer, plainText string) error {
	b := bufio.NewWriter(w)
	writeTop(b, p.Title, plainText)
	fmt.Fprint(b, `<script type="application/octet-stream" id="data">`)
	encoder := base64.NewEncoder(base64.StdEncoding, b)
	compressor := gzip.NewWriter(encoder)
	if err := p.WriteData(compressor); err != nil {
		return err
	}

	if err := compressor.Close(); err != nil {
		return fmt.Errorf("compressing the data of a page: %w", err)
	}

	if err := encoder.Close(); err != nil {
		return fmt.Errorf("encoding the data of a page: %w", err)
	}

	return writeBottom(b)
}

// WriteShell writes an HTML file whose script fetches the data from source, a relative URL.
func WriteShell(w io.Writer, title, source string) error {
	b := bufio.NewWriter(w)
	writeTop(b, title, "This page needs JavaScript.")
	fmt.Fprintf(b, `<script type="application/octet-stream" id="data" data-source="%s">`,
		html.EscapeString(source))
	return writeBottom(b)
}

// writeTop writes the HTML before the data. writeBottom returns the error.
func writeTop(b *bufio.Writer, title, plainText string) {
	fmt.Fprintf(b, `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="%s">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s</title>
<style>%s</style>
</head>
<body>
<noscript><pre>%s</pre></noscript>
<div id="app"></div>
`, Policy(), html.EscapeString(title), style, html.EscapeString(plainText))
}

// writeBottom writes the HTML after the data, and returns the first error of any write to b.
func writeBottom(b *bufio.Writer) error {
	fmt.Fprintf(b, "</script>\n<script>%s</script>\n</body>\n</html>\n", script)
	if err := b.Flush(); err != nil {
		return fmt.Errorf("writing a page: %w", err)
	}

	return nil
}

// Policy returns the Content-Security-Policy of pages, which servers can also send as a header. It
// permits only the script and style of this package, and requests to the server of the page.
func Policy() string {
	directives := []string{
		"default-src 'none'",
		"script-src " + hashOf(script),
		"style-src " + hashOf(style),
		"connect-src 'self'", // the script fetches data
		"base-uri 'none'",
		"form-action 'none'",
	}
	return strings.Join(directives, "; ")
}

// hashOf returns the hash source by which a policy permits an inline script or style.
func hashOf(text string) string {
	hash := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
}
