# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Style sheet, script and status symbols of the page. Text of 4.5:1 or more on every background, in light and dark.

PRIVATE to the collection.
"""

from __future__ import annotations

# A shape of its own for each status: disc with a tick, triangle, octagon with a cross, empty ring.
SPRITE = (
    '<svg width="0" height="0" class="sprite" aria-hidden="true">'
    '<symbol id="i-ok" viewBox="0 0 16 16"><circle cx="8" cy="8" r="8" fill="currentColor"/>'
    '<path d="M4 8.4l2.7 2.7L12 5.6" fill="none" class="cut"/></symbol>'
    '<symbol id="i-open" viewBox="0 0 16 16"><path d="M8 .8 16 15H0z" fill="currentColor"/>'
    '<path d="M8 5.6v4.2M8 11.6v1.6" fill="none" class="cut"/></symbol>'
    '<symbol id="i-bad" viewBox="0 0 16 16">'
    '<path d="M4.7 0h6.6L16 4.7v6.6L11.3 16H4.7L0 11.3V4.7z" fill="currentColor"/>'
    '<path d="M5 5l6 6M11 5l-6 6" fill="none" class="cut"/></symbol>'
    '<symbol id="i-off" viewBox="0 0 16 16"><circle cx="8" cy="8" r="6.5" fill="none" class="ring"/></symbol></svg>'
)

STYLE = """
:root{
  --page:#f5f6f8; --card:#fff; --ink:#1b2129; --soft:#555f6b; --line:#d5dae0; --faint:#eceff2; --link:#0a58a8;
  --ok:#17703a; --open:#855300; --bad:#b3211a; --ok-b:#e6f4ea; --open-b:#fdf3dd; --bad-b:#fdeceb; --gpu:#e4eefb;
  --gpu-l:#4b7fbd; --nic:#eaf5ec; --nic-l:#4f9464; --h5:#cfe9d5; --h4:#e2edc9; --h3:#f7edc2; --h2:#fbdcb4;
  --h1:#f8c4b4; --h0:#f2a9a6; --hi:#1b2129 }
@media screen and (prefers-color-scheme:dark){
  :root{
    --page:#10151b; --card:#181f27; --ink:#e7eaee; --soft:#a3adb8; --line:#333d48; --faint:#212a33; --link:#86bdff;
    --ok:#5cc97a; --open:#e3ac45; --bad:#ff8f86; --ok-b:#14301e; --open-b:#33280f; --bad-b:#3a1a19; --gpu:#1c2f48;
    --gpu-l:#5f94d6; --nic:#193326; --nic-l:#5aa874; --h5:#1d4a2d; --h4:#3a4a1e; --h3:#54471a; --h2:#643a17;
    --h1:#702f20; --h0:#7f2328; --hi:#fff }
}
*{box-sizing:border-box}
body{
  margin:0; background:var(--page); color:var(--ink);
  font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans","DejaVu Sans",sans-serif;
  font-variant-numeric:tabular-nums; overflow-wrap:anywhere }
.sprite{position:absolute}
.cut{stroke:var(--card);stroke-width:2}
.ring{stroke:currentColor;stroke-width:2.5}
.i{width:.95em;height:.95em;vertical-align:-.1em;flex:none}
header,main,footer{max-width:1240px;margin:0 auto;padding:0 20px}
.bar{display:flex;flex-wrap:wrap;gap:4px 20px;align-items:baseline;justify-content:space-between;padding-top:18px}
.bar p{margin:0}
.bar p,footer{color:var(--soft)}
h1{font-size:16px;margin:0;font-weight:600}
h2{font-size:18px;margin:30px 0 10px}
h3{font-size:14px;margin:0}
h4{font-size:12px;margin:10px 0 2px;color:var(--soft);font-weight:600}
p{margin:6px 0}
a{color:var(--link)}
a:focus-visible,summary:focus-visible,button:focus-visible,.scroll:focus-visible{
  outline:2px solid var(--link); outline-offset:2px; border-radius:3px }
.ok{color:var(--ok)}
.open{color:var(--open)}
.bad{color:var(--bad)}
.off{color:var(--soft)}
td>.ok,td>.open,td>.bad,td>.off,th>.ok,th>.open,th>.bad{white-space:nowrap}
.vh{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap;margin:0}
.skip{position:absolute;left:-99em}
.skip:focus{left:20px;top:6px;background:var(--card);padding:4px 10px;z-index:2}
.summary{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:18px 20px;margin-top:12px}
.summary h2{font-size:26px;line-height:1.2;margin:0 0 14px;font-weight:650}
.tiles{
  list-style:none; margin:0; padding:0; display:grid; grid-template-columns:repeat(auto-fit,minmax(170px,1fr));
  gap:10px }
.tiles li{border:1px solid var(--line);border-left:4px solid currentColor;border-radius:6px;padding:8px 12px}
.tiles h3{font-size:12px}
.tiles p{color:var(--soft);margin:0;font-size:12.5px;line-height:1.35}
.tiles .figure{color:var(--ink);font-size:21px;font-weight:600;line-height:1.3}
.marks{
  list-style:none; margin:14px 0 0; padding:0; display:grid;
  grid-template-columns:repeat(auto-fill,minmax(112px,1fr)); gap:4px }
.marks a{
  display:block; padding:2px 7px; border-radius:4px; font-size:12.5px; text-decoration:none; white-space:nowrap;
  overflow:hidden; text-overflow:ellipsis }
.marks a:hover{text-decoration:underline}
.marks .ok{background:var(--ok-b)}
.marks .open{background:var(--open-b)}
.marks .bad{background:var(--bad-b);font-weight:600}
nav{display:flex;flex-wrap:wrap;gap:4px 18px;margin:14px 2px 0}
.cards{list-style:none;margin:0;padding:0;display:grid;gap:10px}
.cards>li{
  background:var(--card); border:1px solid var(--line); border-left:4px solid currentColor; border-radius:6px;
  padding:10px 14px }
.cards>li>:not(h3){color:var(--ink)}
.cards h3 code,.cards h3 .tally{margin-left:8px}
.tally{color:var(--soft);font-weight:400}
.follows{margin:0;padding-left:18px}
code{
  font:12px/1.4 ui-monospace,"DejaVu Sans Mono","Liberation Mono",monospace; background:var(--faint);
  color:var(--ink); padding:1px 5px; border-radius:3px }
.fix{position:relative;margin-top:8px;background:var(--faint);border-radius:5px;padding:6px 10px 8px}
.fix h4{margin:0;color:var(--soft)}
.fix p{
  margin:0; font-family:ui-monospace,"DejaVu Sans Mono","Liberation Mono",monospace; font-size:12.5px;
  padding-right:60px }
button{
  position:absolute; right:8px; top:8px; font:12px system-ui,sans-serif; color:var(--ink); background:var(--card);
  border:1px solid var(--soft); border-radius:4px; padding:3px 10px; cursor:pointer }
.scroll{overflow-x:auto;margin:8px 0;position:relative}
table{border-collapse:collapse;width:100%;font-size:12.5px;line-height:1.4}
caption{text-align:left;font-weight:600;padding:2px 0 4px}
caption small,.legend{color:var(--soft);font-weight:400}
caption small{display:block}
th,td{
  text-align:left; vertical-align:top; padding:3px 12px 3px 0; border-bottom:1px solid var(--line); font-weight:400;
  min-width:4ch }
thead th{color:var(--soft);font-size:12px;white-space:nowrap}
td ul{margin:0;padding-left:16px}
tbody tr:last-child>*{border-bottom:0}
.ports th,.ports td{white-space:nowrap}
small{color:var(--soft);font-size:11.5px;margin-left:3px}
.legend{font-size:12.5px}
.key b{color:var(--ink)}
.key{display:inline-block;padding:0 7px;margin:1px 2px;border-radius:3px;font-size:12px}
details.node{background:var(--card);border:1px solid var(--line);border-radius:6px;margin:6px 0;scroll-margin-top:8px}
.node.bad{border-left:4px solid var(--bad)}
.node.open{border-left:4px solid var(--open)}
.node.ok{border-left:4px solid var(--ok)}
.node{color:var(--ink)}
summary{cursor:pointer}
summary h3{display:inline}
.node>summary{
  display:grid; grid-template-columns:minmax(150px,1.1fr) 190px 90px 2fr; gap:2px 14px; align-items:center;
  padding:5px 12px; list-style:none }
.node>summary::-webkit-details-marker{display:none}
.node>summary h3::before{
  content:""; display:inline-block; border:4px solid transparent; border-left:6px solid var(--soft);
  margin-right:5px; vertical-align:0 }
.node[open]>summary h3::before{transform:rotate(90deg) translate(2px,1px)}
.node.ok:not([open]){margin:3px 0}
.node.ok:not([open])>summary{padding-top:2px;padding-bottom:2px}
.node>summary:hover{background:var(--faint)}
.strip,.count{color:var(--soft);font-size:12.5px}
.strip i{
  display:inline-block; width:9px; height:13px; margin-right:2px; border-radius:2px; vertical-align:-2px;
  border:1px solid var(--ok); background:var(--ok) }
.strip .dn{
  border-color:var(--bad);
  background:linear-gradient(to top right,transparent 42%,var(--bad) 42% 58%,transparent 58%) }
.notes{display:flex;flex-wrap:wrap;gap:2px 12px;font-size:12.5px}
.inside{padding:6px 14px 12px;border-top:1px solid var(--line)}
dl{display:flex;flex-wrap:wrap;gap:4px 26px;margin:6px 0}
dt{color:var(--soft);font-size:11.5px}
dd{margin:0;font-size:13px;max-width:95ch}
.maps{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr));gap:12px;margin:8px 0}
figure{margin:0;border:1px solid var(--line);border-radius:6px;padding:8px 10px;min-width:0}
figcaption{font-weight:600;font-size:12.5px}
figure .scroll{margin:0}
.map{display:block;width:100%;height:auto;max-width:640px;min-width:420px}
.map text{font-size:12px;fill:var(--ink)}
.map .n{font-weight:650}
.map .s{font-size:11px;fill:var(--soft)}
.map .bus{font-size:11px;fill:var(--soft)}
.map rect{stroke-width:1.2}
.map .gpu{fill:var(--gpu);stroke:var(--gpu-l)}
.map .nic{fill:var(--nic);stroke:var(--nic-l)}
.map .none{fill:var(--bad-b);stroke:var(--bad);stroke-dasharray:4 3}
.map .tree{fill:none;stroke:var(--line);stroke-width:1.5}
.map .rail{fill:none;stroke:var(--ink);stroke-width:2.4}
.map .PHB{stroke-width:1.4}
.map .NODE{stroke-width:1.4;stroke-dasharray:6 3}
.map .SYS{stroke:var(--bad);stroke-width:1.4;stroke-dasharray:2 3}
.key.PIX,.key.PXB,.key.PHB,.key.NODE,.key.SYS{
  border-left:3px solid var(--ink); border-radius:0; padding:0 5px; color:var(--ink) }
.key.PHB{border-left-width:1.5px}
.key.NODE{border-left:1.5px dashed var(--ink)}
.key.SYS{border-left:1.5px dotted var(--bad)}
.heat{width:auto}
.heat td,.heat th{border:2px solid var(--page);padding:2px 8px;white-space:nowrap}
.heat td{text-align:right;min-width:70px}
.heat thead th{text-align:right;vertical-align:bottom}
.heat thead th:first-child{text-align:left}
.heat thead small{display:block;margin:0}
.h5,.h4,.h3,.h2,.h1,.h0{color:var(--hi)}
.h5{background:var(--h5)}
.h4{background:var(--h4)}
.h3{background:var(--h3)}
.h2{background:var(--h2)}
.h1{background:var(--h1)}
.h0{background:var(--h0)}
.h5 small,.h4 small,.h3 small,.h2 small,.h1 small,.h0 small{color:inherit}
.hx{background:repeating-linear-gradient(45deg,var(--line) 0 4px,var(--card) 4px 8px);color:var(--ink)}
.none{color:var(--soft)}
.heat .out{outline:2px solid var(--bad);outline-offset:-2px;font-weight:700}
.heat .out .i{margin-left:4px;color:var(--bad)}
.heat .out.h0 .i,.heat .out.h1 .i{color:var(--hi)}
.key.out{border:2px solid var(--bad);color:var(--ink)}
.key.out .i{color:var(--bad)}
footer{margin-top:34px;padding-bottom:24px;font-size:12px}
@media screen and (max-width:720px){
  header,main,footer{padding:0 12px}
  .summary{padding:14px}
  .summary h2{font-size:21px}
  .node>summary{grid-template-columns:1fr auto}
  .notes{grid-column:1/-1}
  .count{display:none}
  .tiles{grid-template-columns:1fr 1fr}
  .scroll table:not(.heat){min-width:600px}
  .inside{padding:6px 10px 10px}
}
@media (forced-colors:active){
  .i,.map{forced-color-adjust:auto}
  .strip i{border-color:CanvasText}
}
@media print{
  :root{--page:#fff}
  @page{margin:12mm}
  body{font-size:11px}
  nav,.skip,button{display:none}
  header,main,footer{max-width:none;padding:0}
  details.matters::details-content{content-visibility:visible;display:block;height:auto;block-size:auto}
  .scroll{overflow:visible}
  .summary{border:0;padding:0}
  a{color:inherit;text-decoration:none}
  .cards>li,figure,tr,.tiles li{break-inside:avoid}
  h2,h3,caption{break-after:avoid}
  .fix p{padding-right:0}
  *{print-color-adjust:exact;-webkit-print-color-adjust:exact}
  .ports{font-size:9px}
  .ports thead th{font-size:9px}
  .ports th,.ports td{padding-right:5px}
  .map{min-width:0}
  .maps{grid-template-columns:1fr 1fr}
  .node>summary{padding:3px 8px}
}
"""

# Everything is readable without it. It adds the copy buttons, opens the node that a link leads to, lets a keyboard
# scroll what is too wide, and opens what matters before a browser prints that does not know ::details-content.
SCRIPT = """
"use strict";
const said = document.getElementById("said");
for (const step of document.querySelectorAll(".step")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy this fix");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(step.textContent);
      said.textContent = "Copied";
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(step);
      said.textContent = "Selected; copy it with the keyboard";
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  step.after(button);
}
function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) { target.open = true; target.scrollIntoView(); }
}
addEventListener("hashchange", reveal);
document.addEventListener("click", (event) => {
  if (event.target.closest('a[href^="#"]')) { setTimeout(reveal); }
});
reveal();
function reachable() {
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth > box.clientWidth) {
      box.tabIndex = 0;
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", (box.querySelector("caption, title") || box).textContent);
    } else { box.removeAttribute("tabindex"); box.removeAttribute("role"); box.removeAttribute("aria-label"); }
  }
}
addEventListener("resize", reachable);
document.addEventListener("toggle", reachable, true);
reachable();
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details.matters:not([open])")];
  for (const item of opened) { item.open = true; }
});
addEventListener("afterprint", () => { for (const item of opened) { item.open = false; } });
"""
