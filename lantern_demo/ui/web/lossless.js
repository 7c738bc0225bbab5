// Is it lossless? Whether the exact methods drew vanilla's tokens in the run on the stage, and how many the relaxed ones changed.

const place = element.querySelector(".lossless");
const words = WORDS.lossless;
const answer = el("span");

function show({ lanes = [], settings } = {}) {
  const vanilla = lanes.find((lane) => lane.id === "vanilla");
  const exact = vanilla ? lanes.filter((lane) => lane.lossless && lane !== vanilla) : [];
  const told = exact.map((lane) => say(lane.differs.size ? words.no : words.yes, { method: lane.label })).join(", ");
  const here = exact.length ? say(words.here, { of: vanilla.tokens.length, told }) : "";
  const other = settings?.noise === "independent" && exact.some((lane) => lane.differs.size) ? words.independent : "";
  const loose = lanes.filter((lane) => !lane.lossless);
  const [methods, counts] = ["label", "changed"].map((part) => new Intl.ListFormat("en").format(loose.map((lane) => String(lane[part]))));
  const relaxed = loose.length ? say(words.relaxed, { methods, counts, of: loose[0].tokens.length }) : "";
  const { file, address } = JSON.parse(props.value);
  answer.textContent = ` ${[here, other, relaxed].filter((part) => part).join(" ")} `;
  answer.style.visibility = "";
  place.replaceChildren(el("b", {}, words.title), answer, `${words.checked} `,
    address ? el("a", { href: address, target: "_blank", rel: "noopener" }, file) : el("code", {}, file));
}

document.addEventListener("lantern-run", () => show(window.lanternRun));
// The answer of the run before is none for this one; it keeps its room, so that nothing moves.
document.addEventListener("lantern-live", () => { answer.style.visibility = "hidden"; });
show(window.lanternRun);
